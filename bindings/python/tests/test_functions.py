"""Functions that the package is given: decorated, run as jobs, or called at a loss."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import tenure
import trio
from conftest import eventually


async def nothing() -> None: ...


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain decorator."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Calls:
    async def __call__(self) -> bool:
        return True


def test_a_generator_holds_until_it_ends(locks: tenure.Locks, name: str) -> None:
    @locks.locked(name, guard="guard")
    def values(guard: tenure.Guard) -> Iterator[object]:
        got = yield guard
        try:
            yield got
        except KeyError:
            yield "caught"
        return "returned"

    def is_held() -> bool:
        return locks.inspect(name) is not None

    assert inspect.isgeneratorfunction(values)
    running: Any = values()
    assert not is_held()  # the body has not begun
    guard = next(running)
    assert guard.is_held() and is_held()
    assert running.send("sent") == "sent" and running.throw(KeyError()) == "caught"
    with pytest.raises(StopIteration, match="returned"):
        next(running)
    assert not is_held()
    running = values()
    next(running)
    running.close()
    assert not is_held()
    running = values()
    next(running)
    del running
    gc.collect()
    eventually(lambda: not is_held())

    @contextmanager
    @locks.locked(name)
    def one() -> Iterator[None]:
        yield

    with one():
        assert is_held()
    assert not is_held()


def test_an_async_generator_holds_until_it_ends(locks: tenure.Locks, name: str) -> None:
    closed: list[str] = []

    @locks.locked(name)
    async def values() -> Any:
        try:
            got = yield 1
            try:
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append("closed")

    @asynccontextmanager
    @locks.locked(name)
    async def one() -> AsyncIterator[None]:
        yield

    async def is_held() -> bool:
        return await locks.ainspect(name) is not None

    async def main() -> None:
        assert inspect.isasyncgenfunction(values)
        running = values()
        assert not await is_held()
        assert await running.__anext__() == 1 and await is_held()
        assert await running.asend("sent") == "sent" and await running.athrow(KeyError()) == "caught"
        with pytest.raises(StopAsyncIteration):
            await running.__anext__()
        assert not await is_held() and len(closed) == 1
        running = values()
        await asyncio.create_task(running.__anext__())  # each step in a task of its own
        await asyncio.create_task(running.aclose())
        assert not await is_held() and len(closed) == 2
        async with one():
            assert await is_held()
        assert not await is_held()
        running = values()
        await running.__anext__()
        await locks.aforce_release(name)
        with pytest.raises(tenure.LostError):
            while True:
                await running.asend(None)
                await asyncio.sleep(0.01)
        running = values()
        await running.__anext__()
        del running
        gc.collect()
        while await is_held():
            await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_hidden_body_is_refused_when_decorated(locks: tenure.Locks, name: str) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    for body in (hidden(nothing), hidden(numbers), functools.partial(hidden(nothing)), hidden(functools.partial(nothing))):
        for decorate in (locks.locked(name), locks.cached(name, 60)):
            with pytest.raises(tenure.InvalidError, match="plain decorator hides"):
                decorate(body)
    for wrong in (staticmethod(len), Calls, 3):
        with pytest.raises(tenure.InvalidError, match="expected a function"):
            locks.locked(name)(wrong)  # type: ignore[type-var]
    with pytest.raises(tenure.InvalidError, match="async generator"):
        locks.cached(name, 60)(numbers)

    async def held() -> bool:
        return await locks.ainspect(name) is not None

    async def main() -> None:
        assert await locks.locked(name)(functools.partial(held))()
        assert await locks.locked(name)(Calls())()

    asyncio.run(main())


def test_a_body_that_would_run_too_late_is_an_error(locks: tenure.Locks, name: str) -> None:
    for late in (lambda: nothing(), lambda: (number for number in [1])):
        with pytest.raises(tenure.InvalidError, match="too late"):
            locks.locked(name)(late)()
    assert locks.inspect(name) is None


def test_templates_are_checked_when_decorated(locks: tenure.Locks, name: str) -> None:
    def report(day: str, guard: object = None) -> str:
        return day

    for template in ("r:{dya}", "r:{}", "r:{0}", "r:{day", "r:{guard}", "r:{dya.year}", "r:{dya[0]}"):
        with pytest.raises(tenure.InvalidError, match="r:"):
            locks.locked(template, guard="guard")(report)
    with pytest.raises(tenure.InvalidError, match="r:"):
        locks.cached("r:{dya}", 60)(report)
    with pytest.raises(tenure.InvalidError, match="guard: got 'gurad', expected an argument of .*report: day, guard"):
        locks.locked(name, guard="gurad")(report)
    with pytest.raises(TypeError, match="tttl"):
        locks.locked(name, tttl=3)  # type: ignore[call-arg]
    with pytest.raises(tenure.InvalidError, match="codec"):
        locks.cached(name, 60, codec="jsno")
    assert locks.locked(name + ":{day[0]}:{day.__class__.__name__}")(report)("monday") == "monday"


def test_a_guard_stands_anywhere_among_the_arguments(locks: tenure.Locks, name: str) -> None:
    class Reports:
        @locks.locked(name + ":{day}", guard="guard")
        def one(self, guard: tenure.Guard, day: str, *more: str, hour: int = 0, **rest: int) -> tuple[object, ...]:
            return guard.is_held(), day, more, hour, rest

    one: Any = Reports().one
    assert one("monday") == (True, "monday", (), 0, {})
    assert one("monday", "early", hour=7, minute=5) == (True, "monday", ("early",), 7, {"minute": 5})
    assert one(day="monday") == (True, "monday", (), 0, {})
    for args, kwargs in (((), {}), (("monday",), {"guard": None, "day": "x"})):
        with pytest.raises(TypeError):
            one(*args, **kwargs)

    def job(turn: tenure.Turn, day: str) -> str:
        assert turn.is_held()
        return day

    once = locks.once_per(name, 3600)
    with pytest.raises(TypeError):
        once.run(job)
    assert once.last() is None, "nothing has begun"
    assert once.run(job, "monday").value == "monday"


def test_fastapi_sees_no_guard_and_dependencies_hold(url: str, name: str) -> None:
    from fastapi import Depends, FastAPI
    from fastapi.testclient import TestClient

    app, locks = FastAPI(), tenure.connect(url, op_timeout=20)

    @app.get("/report/{day}")
    @locks.locked(name + ":{day}", guard="guard")
    async def report(day: str, guard: tenure.Guard) -> bool:
        return guard.is_held()

    @locks.locked(name)
    def blocking() -> Iterator[None]:
        yield

    @locks.locked(name)
    async def asynchronous() -> AsyncIterator[None]:
        yield

    shared = locks.semaphore(name + "s", 8)

    def block() -> Iterator[tenure.Guard]:
        with shared as guard:
            yield guard

    @app.get("/blocking")
    def one(_: None = Depends(blocking)) -> bool:
        return locks.inspect(name) is not None

    @app.get("/async")
    async def two(_: None = Depends(asynchronous)) -> bool:
        return await locks.ainspect(name) is not None

    @app.get("/block")
    def three(guard: Any = Depends(block)) -> bool:
        return guard.is_held()

    with TestClient(app) as client, ThreadPoolExecutor(8) as clients:
        assert client.get("/report/monday").json() is True
        for path in ["/blocking", "/async", *["/block"] * 8]:
            answers = list(clients.map(lambda _, path=path: client.get(path).json(), range(8)))
            assert answers == [True] * 8, path
    assert locks.inspect(name) is None and locks.inspect(name + "s") is None


def test_a_block_may_end_in_another_thread_or_task(locks: tenure.Locks, name: str) -> None:
    for lock in (locks.mutex(name), locks.semaphore(name + "s", 3)):

        def block(lock: tenure.Lock[tenure.Guard] = lock) -> Iterator[tenure.Guard]:
            with lock as guard:
                yield guard

        def in_thread(work: Callable[[], object]) -> object:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(work).result(20)

        running = block()
        guard = next(running)
        with lock if lock.name != name else locks.mutex("other") as other:
            in_thread(running.close)
            assert not guard.is_held() and other.is_held()
        assert locks.inspect(lock.name) is None
        # Without a frame that both ends share.
        guard = in_thread(lock.__enter__)  # type: ignore[assignment]
        lock.__exit__(None, None, None)
        assert not guard.is_held()
        with pytest.raises(tenure.ReleasedError):
            lock.__exit__(None, None, None)

        async def ablock(lock: tenure.Lock[tenure.Guard] = lock) -> AsyncIterator[tenure.Guard]:
            async with lock as guard:
                yield guard

        async def main() -> None:
            running: Any = ablock()
            guard = await asyncio.create_task(running.__anext__())
            await asyncio.create_task(running.aclose())
            assert not guard.is_held()

        asyncio.run(main())


def test_a_lost_block_does_not_end_the_next_one(locks: tenure.Locks, name: str) -> None:
    mutex = locks.mutex(name)
    first, second = threading.Event(), threading.Event()

    def lose() -> None:
        with pytest.raises(tenure.LostError), mutex:
            locks.force_release(name)
            first.set()
            second.wait(20)

    thread = threading.Thread(target=lose)
    thread.start()
    first.wait(20)
    with mutex as guard:
        second.set()
        thread.join(20)
        assert guard.is_held()


def test_async_functions_do_not_run_as_blocking_jobs(locks: tenure.Locks, name: str) -> None:
    job, cache = locks.once_per(name, 3600), locks.cache(name + "c", 60)

    async def numbers() -> AsyncIterator[int]:
        yield 1

    def generator() -> Iterator[int]:
        yield 1

    for body in (nothing, Calls(), functools.partial(nothing), numbers, generator):
        for use in (job.run, cache.get_or_compute, cache.refresh):
            with pytest.raises(tenure.InvalidError, match="must be a plain function"):
                use(body)  # type: ignore[operator]
    assert job.last() is None
    with pytest.raises(tenure.InvalidError, match="too late"):
        job.run(lambda: nothing())
    last = job.last()
    assert last is not None and last.outcome == "failed"
    assert job.run(len, "abc").value == 3  # the window is open again
    with pytest.raises(tenure.InvalidError, match="too late"):
        cache.get_or_compute(lambda: nothing())
    with pytest.raises(tenure.InvalidError, match="must be a plain function"):
        locks.once_per(name, nothing)  # type: ignore[arg-type]
    with locks.mutex(name + "m") as guard, pytest.raises(tenure.InvalidError, match="cancel_on_loss"):
        guard.on_lost(nothing)  # type: ignore[arg-type]
    with pytest.raises(tenure.InvalidError, match="cancel_on_loss"):
        locks.mutex(name + "n", on_lost=nothing)  # type: ignore[arg-type]


def test_blocking_functions_do_not_run_in_event_loops(locks: tenure.Locks, name: str) -> None:
    job, cache = locks.once_per(name, 3600), locks.cache(name + "c", 60)

    def work() -> int:
        raise AssertionError("it ran")

    async def main() -> None:
        for body in (work, len, hidden(work)):
            for use in (job.arun, cache.aget_or_compute, cache.arefresh):
                with pytest.raises(tenure.InvalidError, match="must be an async function"):
                    await use(body)
        assert await job.alast() is None
        with pytest.raises(tenure.InvalidError, match="blocked the event loop"):
            await job.arun(lambda: 3)
        assert (await job.arun(Calls())).value is True
        assert await cache.aget_or_compute(hidden(Calls())) is True
        assert await cache.arefresh(lambda: Calls()()) is True

    asyncio.run(main())


def test_a_job_gets_its_turn(locks: tenure.Locks, name: str) -> None:
    hour = timedelta(hours=1)
    held = locks.once_per(name, hour).run(lambda turn: (turn.is_held(), turn.fence > 0, turn.window)).value
    assert held is not None and held[:2] == (True, True) and held[2][1] - held[2][0] == hour

    async def work(add: int, turn: tenure.Turn) -> int:
        assert turn.is_held()
        return add

    assert asyncio.run(locks.once_per(name + "a", 60).arun(work, 3)).value == 3
    assert locks.once_per(name + "b", 60).run(lambda turn: turn, turn="mine").value == "mine"


class Unshown(Exception):
    def __str__(self) -> str:
        raise KeyError("it cannot be shown")


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        (FileNotFoundError("caf\udce9"), "FileNotFoundError: caf?"),
        (Unshown(), "Unshown: its message cannot be shown"),
    ],
    ids=["latin-1", "unshown"],
)
def test_any_exception_of_a_job_reaches_the_caller(locks: tenure.Locks, name: str, raised: Exception, why: str) -> None:
    job, cache = locks.once_per(name, 3600), locks.cache(name, 60)

    def fail() -> None:
        raise raised

    async def afail() -> None:
        raise raised

    with pytest.raises(type(raised)):
        job.run(fail)
    last = job.last()
    assert last is not None and (last.outcome, last.why) == ("failed", why)
    with pytest.raises(type(raised)):
        asyncio.run(job.arun(afail))
    with pytest.raises(type(raised)):
        cache.get_or_compute(fail)
    with pytest.raises(type(raised)):
        asyncio.run(cache.aget_or_compute(afail))
    turn = job.try_begin()
    assert turn is not None
    turn.fail("caf\udce9")
    assert job.run(len, "abc"), "the window is open"


def test_an_exception_of_a_window_reaches_the_caller(locks: tenure.Locks, name: str) -> None:
    def broken(now: datetime) -> tuple[datetime, datetime]:
        raise ZeroDivisionError("no calendar")

    job = locks.once_per(name, broken)
    with pytest.raises(ZeroDivisionError, match="no calendar"):
        job.run(len, "abc")
    with pytest.raises(ZeroDivisionError, match="no calendar"):
        asyncio.run(job.atry_begin())
    naive = locks.once_per(name, lambda now: (now.replace(tzinfo=None), now))
    with pytest.raises(tenure.InvalidError, match="without a time zone"):
        naive.run(len, "abc")
    with pytest.raises(tenure.InvalidError, match="period: got '1d'"):
        locks.once_per(name, "1d")  # type: ignore[arg-type]


def test_schedules_keep_their_zones(locks: tenure.Locks, name: str) -> None:
    def window(period: Any) -> tuple[datetime, datetime]:
        found = locks.once_per(f"{name}:{period}", period).run(lambda turn: turn.window).value
        assert found is not None
        return found

    def starts(period: Any, zone: str) -> time:
        start, end = window(period)
        assert end > datetime.now(timezone.utc) - timedelta(minutes=1)
        return start.astimezone(ZoneInfo(zone)).time()

    tokyo, berlin = ZoneInfo("Asia/Tokyo"), "Europe/Berlin"
    assert starts(tenure.daily(at=time(2, tzinfo=tokyo)), "Asia/Tokyo") == time(2)
    assert starts(tenure.daily(2 * 3600, zone=tokyo), "Asia/Tokyo") == time(2)
    assert starts(tenure.daily(time(2, 30, tzinfo=timezone.utc)), "UTC") == time(2, 30)
    assert starts(tenure.daily(time(2, 30, 0, 500_000)), "UTC") == time(2, 30, 0, 500_000)
    assert starts(tenure.weekly(timedelta(hours=26), zone=berlin), berlin) == time(2)
    assert starts(tenure.monthly(3600, zone=berlin), berlin) == time(1)
    assert window(tenure.weekly(86_400))[0].weekday() == 1 and window(tenure.monthly())[0].day == 1
    assert starts(tenure.cron("15 4 * * *", zone=berlin), berlin) == time(4, 15)
    assert starts(tenure.cron("@daily"), "UTC") == time(0)
    for wrong, message in [
        (lambda: tenure.cron("0 25 * * *"), "0 to 23"),
        (lambda: tenure.daily(0, zone="Asia/Tokio"), "Asia/Tokio"),
        (lambda: tenure.daily(0, zone=timezone(timedelta(hours=9))), "zone: got"),
        (lambda: tenure.daily(time(2, tzinfo=tokyo), zone=berlin), "expected one zone"),
        (lambda: tenure.monthly(40 * 86_400), "28d"),
    ]:
        with pytest.raises(tenure.InvalidError, match=message):
            locks.once_per(name, wrong())


def test_an_owner_is_who_calls(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        tree = locks.reentrant_mutex(name)
        # `wait_for` awaits in a task of its own before Python 3.12.
        first = await asyncio.wait_for(tree.alock(), 20)
        second = await asyncio.wait_for(tree.atry_lock(), 20)
        assert second is not None and await asyncio.wait_for(tree.ahold_count(), 20) == 2

        async def other() -> object:
            return await tree.atry_lock()

        assert await asyncio.create_task(other()) is None
        await first.arelease()
        await second.arelease()

    asyncio.run(main())


def test_trio_tasks_are_cancelled_at_a_loss(locks: tenure.Locks, name: str) -> None:
    @locks.locked(name + ":{day}")
    async def report(day: str, lose: bool = False) -> str:
        if lose:
            await locks.aforce_release(f"{name}:{day}")
            await trio.sleep(60)
        return day

    async def sleep() -> None:
        await trio.sleep_forever()

    async def main() -> None:
        assert await report("monday") == "monday"
        with pytest.raises(tenure.LostError):
            await report("tuesday", lose=True)
        job = locks.once_per(name, 3600)
        assert (await job.arun(report, "monday")).value == "monday"
        with trio.move_on_after(0.05) as limit:  # a cancellation from elsewhere is no loss
            await locks.locked(name)(sleep)()
        assert limit.cancelled_caught
        reasons: list[tenure.LostError] = []
        guard = await locks.mutex(name, on_lost=reasons.append).alock()
        await locks.aforce_release(name)
        with trio.fail_after(20):
            assert isinstance(await guard.lost, tenure.LostError)
            while not reasons:
                await trio.sleep(0.002)

    for _ in range(2):  # each run has an event loop of its own
        trio.run(main)
        locks.once_per(name, 3600).reset()


def test_anyio_works_on_both_loops(locks: tenure.Locks, name: str) -> None:
    import anyio

    async def main() -> None:
        mutex = locks.mutex(name)

        async def turn() -> None:
            async with mutex as guard:
                with guard.cancel_on_loss():
                    await anyio.sleep(0)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(turn)
        async with mutex:
            with anyio.move_on_after(0.05) as limit:
                await mutex.alock()
            assert limit.cancelled_caught

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})


