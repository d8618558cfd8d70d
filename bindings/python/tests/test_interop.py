"""One name, locked by the package, by the command of the library, and by the lock of redis-py."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tenure
from conftest import ROOT, Server, eventually

COMMAND = Path(os.environ.get("TENURE_BINARY") or ROOT / "target/debug/tenure")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    if not COMMAND.exists() and not shutil.which(str(COMMAND)):
        pytest.fail(f"{COMMAND} is missing: run `cargo build -p tenure-cli`, or set TENURE_BINARY")
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)


def test_the_command_and_the_package_exclude_each_other(locks: tenure.Locks, url: str, name: str) -> None:
    with locks.mutex(name, label="from Python") as guard:
        busy = command("run", "--store", url, "--wait", "0", name, "--", "true")
        assert busy.returncode == 75, busy
        shown = command("status", "--store", url, name)
        assert "from Python" in shown.stdout and str(guard.fence) in shown.stdout, shown
    ran = command("run", "--store", url, "--wait", "0", name, "--", "sh", "-c", "echo token $TENURE_FENCE")
    assert ran.returncode == 0, ran
    again = locks.mutex(name).try_lock()
    assert again is not None and again.fence > guard.fence
    again.release()


def test_holds_pass_between_the_command_and_the_package(locks: tenure.Locks, url: str, name: str) -> None:
    acquired = command("acquire", "--store", url, name)
    assert acquired.returncode == 0, acquired
    guard = locks.resume(name, acquired.stdout.split()[0])
    assert guard is not None and guard.is_held()
    owner = guard.detach()
    assert command("verify", "--store", url, "--owner", owner, name).returncode == 0
    assert command("release", "--store", url, "--owner", owner, name).returncode == 0
    assert locks.inspect(name) is None


def test_the_package_waits_for_the_command(locks: tenure.Locks, url: str, name: str, tmp_path: Path) -> None:
    begun, leave = tmp_path / "begun", tmp_path / "leave"
    script = f"touch {begun}; while [ ! -e {leave} ]; do sleep 0.01; done"
    running = subprocess.Popen([COMMAND, "run", "--store", url, name, "--", "sh", "-c", script])
    try:
        eventually(begun.exists)
        assert locks.mutex(name).try_lock() is None
        status = locks.inspect(name)
        assert status is not None and status.holders[0].owner is not None
        leave.touch()
        guard = locks.mutex(name).try_lock(timeout=20)
        assert guard is not None
        guard.release()
    finally:
        leave.touch()
        running.wait(20)


def test_redis_py_and_the_package_exclude_each_other(locks: tenure.Locks, server: Server, name: str) -> None:
    theirs = server.client.lock(name, timeout=20)
    with locks.mutex(name):
        assert not theirs.acquire(blocking=False)
    assert theirs.acquire(blocking=False)
    assert locks.mutex(name).try_lock() is None
    status = locks.inspect(name)
    assert status is not None and status.holders[0].owner is None and status.foreign
    theirs.release()
    guard = locks.mutex(name).try_lock(timeout=20)
    assert guard is not None
    guard.release()


def test_all_three_take_turns(locks: tenure.Locks, server: Server, url: str, name: str, tmp_path: Path) -> None:
    """A counter in a file, which only the lock protects."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    script = f"count=$(cat {counter}); sleep 0.002; echo $((count + 1)) >{counter}"
    loop = f"for turn in 1 2 3 4 5; do {COMMAND} run --store {url} {name} -- sh -c '{script}' || exit 1; done"
    running = subprocess.Popen(["sh", "-c", loop])

    def add() -> None:
        count = int(counter.read_text())
        counter.write_text(str(count + 1))

    for _ in range(5):
        with locks.mutex(name):
            add()
        with server.client.lock(name, timeout=20, sleep=0.005):
            add()
    assert running.wait(60) == 0
    assert int(counter.read_text()) == 15
