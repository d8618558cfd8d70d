"""Jobs that a program declares and runs in each of their windows."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import tenure
import trio
from conftest import Program, Server, eventually

Start = Callable[..., Program]


def test_each_window_is_run_once(url: str, name: str) -> None:
    ran: list[tuple[datetime, datetime]] = []
    stop, threads = threading.Event(), []
    for _ in range(2):  # two processes, as it were
        locks = tenure.connect(url, op_timeout=20)

        @locks.job(name, 1.0)
        def job(turn: tenure.Turn) -> None:
            assert turn.is_held() and 0 <= turn.late_by() < 1
            ran.append(turn.window)

        threads.append(threading.Thread(target=locks.run_jobs, args=(stop,)))
        threads[-1].start()
    eventually(lambda: len(ran) >= 3)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(set(ran)) == len(ran), "a window ran twice"


def test_a_run_in_progress_is_finished(locks: tenure.Locks, name: str) -> None:
    own, stop, begun, done = locks.configured(), threading.Event(), threading.Event(), []

    @own.job(name, tenure.daily())
    def job() -> None:
        begun.set()
        stop.wait(20)
        time.sleep(0.05)
        done.append(1)

    thread = threading.Thread(target=own.run_jobs, args=(stop,))
    thread.start()
    assert begun.wait(20)
    stop.set()
    thread.join(20)
    last = own.once_per(name, tenure.daily()).last()
    assert done == [1] and last is not None and last.outcome == "done"


def test_async_jobs_run_until_they_are_cancelled(locks: tenure.Locks, name: str) -> None:
    own, ran = locks.configured(), asyncio.Event()

    @own.job(name, cron="* * * * *", zone="Europe/Berlin")
    async def job(turn: tenure.Turn) -> None:
        assert turn.window[0] <= datetime.now(timezone.utc)
        ran.set()

    async def main() -> None:
        running = asyncio.create_task(own.arun_jobs())
        await asyncio.wait_for(ran.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())

    async def in_trio() -> None:
        with trio.move_on_after(0.2) as limit:
            await own.arun_jobs()
        assert limit.cancelled_caught

    trio.run(in_trio)


def test_a_wrong_declaration_is_refused(locks: tenure.Locks, name: str) -> None:
    own = locks.configured()
    with pytest.raises(tenure.InvalidError, match="no job"):
        own.run_jobs()
    for wrong in ({}, {"cron": "@daily", "period": 3}, {"period": 3, "zone": "UTC"}, {"cron": "0 25 * * *"}):
        with pytest.raises(tenure.InvalidError):
            own.job(name, **wrong)  # type: ignore[arg-type]

    @own.job(name, 60)
    async def job() -> None: ...

    with pytest.raises(tenure.InvalidError, match="arun_jobs"):
        own.run_jobs()


def test_ctrl_c_ends_the_jobs(url: str, name: str, program: Start) -> None:
    running = program(
        """
        import sys, tenure
        locks = tenure.connect(sys.argv[1], op_timeout=20)

        @locks.job(sys.argv[2], tenure.daily())
        def job():
            print("ran")

        try:
            locks.run_jobs()
        except KeyboardInterrupt:
            print("ended")
        """,
        url,
        name,
    )
    assert running.line() == "ran"
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "ended"
    running.end()


def test_a_store_that_refuses_from_the_start_ends_the_jobs(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        server.client.execute_command("ACL", "SETUSER", "default", "on", ">secret")
        locks = tenure.open_lazily(server.url, op_timeout=20)

        @locks.job("blocking", tenure.daily())
        def job() -> None: ...

        with pytest.raises(tenure.RefusedError):
            locks.run_jobs()
        other = locks.configured()

        @other.job("async", tenure.daily())
        async def ajob() -> None: ...

        with pytest.raises(tenure.RefusedError):
            asyncio.run(other.arun_jobs())
    finally:
        server.stop()


def test_a_job_that_cannot_run_ends_the_others(locks: tenure.Locks, name: str) -> None:
    own, begun = locks.configured(), asyncio.Event()
    ends: list[str] = []

    async def main() -> None:
        @own.job(name + "good", tenure.daily())
        async def good() -> None:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ends.append("cancelled")

        @own.job(name + "bad", lambda now: windows(now))
        async def bad() -> None: ...

        def windows(now: datetime) -> tuple[datetime, datetime]:
            if begun.is_set():
                raise ZeroDivisionError
            return now - timedelta(seconds=1), now + timedelta(seconds=0.1)

        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(own.arun_jobs(), 30)
        assert ends == ["cancelled"]

    asyncio.run(main())
