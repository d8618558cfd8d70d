"""One name, locked by the package, by the command of the library, by the Node package, and by the lock of redis-py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import tenure
from conftest import DIES_WITH_US, ROOT, Server, eventually

COMMAND = Path(os.environ.get("TENURE_BINARY") or ROOT / "target/debug/tenure")
NODE_PACKAGE = ROOT / "target/bindings/node/package/dist/index.js"
# Tries the locks that it reads the names of, and says the token or `busy`.
NODE_PROGRAM = """
const tenure = require(process.argv[1]);
(async () => {
  const locks = await tenure.connect(process.argv[2], { opTimeout: "20s" });
  let guard = null;
  for await (const line of require("node:readline").createInterface({ input: process.stdin })) {
    if (line === "release") await guard.release();
    else guard = await locks.mutex(line).tryLock();
    console.log(String(line === "release" ? line : guard?.fence ?? "busy"));
  }
})();
"""


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


def fleet() -> ModuleType:
    """The script that starts a server of each store."""
    sys.dont_write_bytecode = True
    spec = spec_from_loader("fleet", SourceFileLoader("fleet", str(ROOT / "scripts/fleet")))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["TENURE"] = COMMAND
    return module


@pytest.mark.parametrize("store", ["redis", "postgres", "mariadb", "etcd", "zookeeper", "file"])
def test_rust_python_and_node_exclude_each_other(store: str) -> None:
    if not NODE_PACKAGE.exists():
        pytest.fail(f"{NODE_PACKAGE} is missing: run `scripts/test-node build`")
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)  # some servers run as another user
        server = fleet().STORES[store](Path(base), 100)
        try:
            exclude_each_other(server.url)
        finally:
            server.stop()


def exclude_each_other(url: str) -> None:
    locks = tenure.connect(url, op_timeout=20)
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    node = subprocess.Popen([*DIES_WITH_US, "node", "-e", NODE_PROGRAM, NODE_PACKAGE, url], **piped)

    def ask_node(line: str) -> str:
        assert node.stdin is not None and node.stdout is not None
        node.stdin.write(f"{line}\n")
        node.stdin.flush()
        return node.stdout.readline().strip()

    def is_busy_for_the_command() -> bool:
        ran = command("run", "--store", url, "--wait", "0", "a", "--", "true")
        assert ran.returncode in (0, 75), ran
        return ran.returncode == 75

    script = "echo $TENURE_FENCE; read line"
    rust = subprocess.Popen([COMMAND, "run", "--store", url, "a", "--", "sh", "-c", script], **piped)
    assert rust.stdout is not None
    fences = [int(rust.stdout.readline())]
    assert locks.mutex("a").try_lock() is None and ask_node("a") == "busy"
    assert rust.communicate("go\n", timeout=60) == ("", None) and rust.returncode == 0

    with locks.mutex("a") as guard:
        fences.append(guard.fence)
        assert ask_node("a") == "busy" and is_busy_for_the_command()

    fences.append(int(ask_node("a")))
    assert locks.mutex("a").try_lock() is None and is_busy_for_the_command()
    assert ask_node("release") == "release"
    assert not is_busy_for_the_command()
    assert fences == sorted(set(fences)), "each holder has a larger token than the one before"
    node.communicate(timeout=60)
    assert node.returncode == 0
