"""A Redis server for the tests, and programs that run beside them."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import tenure
from tenure import testing

ROOT = Path(__file__).resolve().parents[3]
# A shell starts background programs with SIGINT ignored, which their children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

DIES_WITH_US = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    """Waits for a condition, which may be late on a busy machine."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.002)


async def in_flight(control: testing.Control) -> None:
    """Waits until a request to a slow store of `tenure.testing` is without an answer."""
    async with asyncio.timeout(20):
        while not any(request.endswith(": pending") for request in control.requests()):
            await asyncio.sleep(0.001)


class Server:
    """A Redis server on a free port."""

    def __init__(self, directory: Path) -> None:
        server = os.environ.get("TENURE_REDIS_SERVER", "redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [server, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([*DIES_WITH_US, *command], stdout=subprocess.DEVNULL, cwd=directory)
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = redis.Redis(port=self.port)
        eventually(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def url(server: Server) -> str:
    return server.url


@pytest.fixture(scope="session")
def shared_locks(server: Server) -> tenure.Locks:
    # A busy machine may take long to answer.
    return tenure.connect(server.url, op_timeout=20)


_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of a lock that only this test uses."""
    return f"{request.node.name}-{next(_numbers)}"


@pytest.fixture
def locks(shared_locks: tenure.Locks) -> tenure.Locks:
    return shared_locks


class Program:
    """A Python program in its own process. The test reads its lines one by one."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*DIES_WITH_US, sys.executable, "-u", "-c", textwrap.dedent(source), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            assert self.process.stderr
            raise AssertionError(f"the program ended: {self.process.stderr.read()}")
        return line.strip()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self, seconds: float = 30) -> str:
        """Waits until the program exits successfully, and returns the rest of its output."""
        out, errors = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, f"status {self.process.returncode}: {errors}"
        assert "Traceback" not in errors and "panicked" not in errors, errors
        return out.strip()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(source: str, *arguments: str) -> Program:
        started.append(Program(source, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A test that hangs ends the run with a traceback."""
    faulthandler.dump_traceback_later(180, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
