"""Jobs that a program declares, and runs in each of their windows: see `Locks.job`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _functions, _log, _native, _wait
from ._errors import InvalidError, UnknownError, UnreachableError
from ._guards import Turn

if TYPE_CHECKING:
    from ._uses import OncePer


class Job:
    """A function, and the windows in each of which it runs once."""

    def __init__(self, function: Callable[..., Any], once_per: OncePer) -> None:
        self.is_async = _functions.kind_of(function) == _functions.ASYNC
        if not self.is_async:
            _functions.blocking("a job", function, "")
        self.function = function
        self.once_per = once_per

    def check(self) -> None:
        """Fails if the store refuses from the start, which needs its user."""
        try:
            self.once_per.last()
        except (UnreachableError, UnknownError):
            pass

    async def acheck(self) -> None:
        try:
            await self.once_per.alast()
        except (UnreachableError, UnknownError):
            pass

    def begin(self, stop: _native.Stop) -> _native.Op:
        """Waits until the job may begin, and begins it."""
        return self.once_per._opened().begin_until(stop)

    def run(self, turn: Turn) -> None:
        """Does the work. The engine repeats it if it fails."""
        try:
            with turn:
                _functions.finished(self.function, _functions.with_turn(self.function, (), {})(turn))
        except Exception:
            _log.exception("job %s failed", self.once_per.name)

    async def arun(self, turn: Turn) -> None:
        try:
            async with turn:
                with turn.cancel_on_loss():
                    _functions.finished(self.function, await _functions.with_turn(self.function, (), {})(turn))
        except Exception:
            _log.exception("job %s failed", self.once_per.name)


def _checked(jobs: list[Job], is_async: bool) -> None:
    if not jobs:
        raise InvalidError("there is no job: declare one with `locks.job`")
    for job in jobs:
        if job.is_async != is_async:
            other = "an async function; use `arun_jobs`" if job.is_async else "a blocking function; use `run_jobs`"
            raise InvalidError(f"job {job.once_per.name} is {other}")


def run(jobs: list[Job], stop: threading.Event) -> None:
    """Runs blocking jobs, each on its thread, until `stop` is set, and then waits for the runs in progress."""
    _checked(jobs, False)
    ends, failed = _native.Stop(), list[BaseException]()

    def work(job: Job) -> None:
        try:
            job.check()
            while (turn := _wait.granted(job.begin(ends), Turn)) is not None:
                job.run(turn)
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(job,), name=f"job {job.once_per.name}") for job in jobs]
    for thread in threads:
        thread.start()
    try:
        stop.wait()
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


async def arun(jobs: list[Job]) -> None:
    """Runs async jobs until the task is cancelled."""
    _checked(jobs, True)
    never = _native.Stop()

    async def work(job: Job) -> None:
        await job.acheck()
        while True:
            await job.arun(Turn(await _wait.wait(job.begin(never))))

    trio = _wait.trio_here()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(work, job)
    else:
        import asyncio

        tasks = [asyncio.ensure_future(work(job)) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
