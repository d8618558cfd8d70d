"""Locks in event loops."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
import tenure
import trio
from conftest import eventually, in_flight
from tenure import _wait, testing


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    for _ in range(10_000):
        if await condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the condition never came true")


def test_every_kind_works_in_async_with(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        kinds: list[tenure.Lock[tenure.Guard]] = [
            locks.mutex(name + "m"), locks.fair_mutex(name + "f"), locks.semaphore(name + "s", 1),
        ]  # fmt: skip
        for lock in kinds:
            async with lock as guard:
                assert guard.is_held() and await lock.atry_lock() is None
                await guard.averify()
                await guard.arenew()
        tree = locks.reentrant_mutex(name + "r")
        async with tree, tree:
            assert await tree.ahold_count() == 2
        config = locks.rwlock(name + "w")
        async with config.upgradeable() as upgradeable:
            assert await upgradeable.aupgrade()
            await upgradeable.adowngrade()
            async with config.read():
                pass
        async with tenure.multi(locks.mutex(name + "a"), locks.mutex(name + "b")) as guards:
            assert len(guards.fences) == 2
        owner = await (await locks.mutex(name).alock()).adetach()
        guard = await locks.aresume(name, owner)
        assert guard is not None and await locks.arenew_detached(name, owner)
        status = await locks.ainspect(name)
        assert status is not None and [status.name async for status in locks.alist(name)] == [name]
        await guard.akeep_for(0.05)
        await locks.aping()
        await locks.aflush()
        with pytest.raises(tenure.BusyError):
            async with locks.mutex(name + "t"), locks.mutex(name + "t", timeout=0.5):
                pass

    asyncio.run(main())


def test_tasks_take_turns(locks: tenure.Locks, name: str) -> None:
    holders, most, turns = 0, 0, 0

    async def work() -> None:
        nonlocal holders, most, turns
        for _ in range(5):
            async with locks.mutex(name):
                holders += 1
                most = max(most, holders)
                await asyncio.sleep(0)
                holders -= 1
                turns += 1

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(20)))

    asyncio.run(main())
    assert (most, turns) == (1, 100)


class CancelledAt:
    """Awaits work whose task is cancelled at the nth suspension: during it, or when the awaited future is done."""

    def __init__(self, work: Awaitable[object], number: int, late: bool) -> None:
        self.work, self.number, self.late = work, number, late

    def __await__(self) -> Generator[Any, Any, None]:
        inner: Any = self.work.__await__()
        task = asyncio.current_task()
        assert task is not None
        resume = functools.partial(inner.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration:
                return
            if self.number == 0 and self.late and waits_for is not None:
                waits_for.add_done_callback(lambda _: task.cancel())
            elif self.number == 0:
                asyncio.get_running_loop().call_soon(task.cancel)
            self.number -= 1
            try:
                resume = functools.partial(inner.send, (yield waits_for))
            except BaseException as error:
                resume = functools.partial(inner.throw, error)


async def cancel_at(number: int, late: bool, work: Callable[[], Awaitable[object]]) -> bool:
    """Returns whether the work was done before the cancellation."""

    async def cancelled() -> None:
        await CancelledAt(work(), number, late)

    try:
        await asyncio.create_task(cancelled())
        return True
    except asyncio.CancelledError:
        return False


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["mutex", "fair_mutex"])
def test_a_task_cancelled_at_any_await_leaves_nothing_held(
    locks: tenure.Locks, name: str, kind: str, late: bool
) -> None:
    lock = getattr(locks, kind)(name)

    stage = ""

    async def work() -> None:
        nonlocal stage
        stage = "acquire"
        async with lock:
            stage = "hold"
            await asyncio.sleep(0)
            stage = "release"

    async def is_free() -> bool:
        return await locks.ainspect(name) is None

    async def main() -> None:
        cancelled = set[str]()
        # An immediate reply does not suspend, so the nth suspension is not always in the same stage.
        for attempt in range(10_000):
            if not await cancel_at(attempt % 3, late, work):
                cancelled.add(stage)
            await until(is_free)
            if cancelled == {"acquire", "hold", "release"}:
                return
        raise AssertionError(f"cancelled only in {cancelled}")

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_the_queue(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        fair = locks.fair_mutex(name)

        async def waiters(count: int) -> bool:
            status = await locks.ainspect(name)
            return status is not None and len(status.waiters) == count

        async with fair:
            assert not await cancel_at(0, False, fair.alock)
            assert not await cancel_at(0, True, functools.partial(fair.atry_lock, 0.5))
            waiting = asyncio.create_task(fair.alock())
            await until(lambda: waiters(1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: waiters(0))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(fair.alock(), 0.02)
            await until(lambda: waiters(0))
        guard = await fair.atry_lock()
        assert guard is not None
        await guard.arelease()

    asyncio.run(main())


def test_a_release_whose_task_is_cancelled_goes_on(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        for late in (False, True):
            guard = await locks.mutex(name).alock()
            await cancel_at(0, late, guard.arelease)
            again = await locks.mutex(name).atry_lock(20)
            assert again is not None
            await again.arelease()

    asyncio.run(main())


def test_a_task_ended_by_a_loss_sees_the_reason(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        reasons: list[tenure.LostError] = []
        with pytest.raises(tenure.LostError, match=name) as lost:
            async with locks.mutex(name, on_lost=reasons.append) as guard:
                with guard.cancel_on_loss():
                    await locks.aforce_release(name)
                    await asyncio.sleep(60)
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        assert [str(reason) for reason in reasons] == [str(lost.value)]
        # The task continues as if it was never cancelled.
        await asyncio.sleep(0)
        guard = await locks.mutex(name).alock()
        await locks.aforce_release(name)
        assert isinstance(await guard.lost, tenure.LostError)
        with pytest.raises(tenure.LostError), guard.cancel_on_loss():
            raise AssertionError("the lock was lost before")

    asyncio.run(main())


def test_a_cancellation_from_elsewhere_is_no_loss(locks: tenure.Locks, name: str) -> None:
    async def work() -> None:
        async with locks.mutex(name) as guard:
            with guard.cancel_on_loss():
                await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        guard = await locks.mutex(name).alock()
        with guard.cancel_on_loss():
            await guard.arelease()

    asyncio.run(main())


def test_an_update_keeps_the_term() -> None:
    locks, control = testing.store()
    election = locks.configured(op_timeout=20).election("scheduler", "one")

    async def main() -> None:
        async with await election.acampaign() as term:
            asked = asyncio.create_task(term.astop_requested())
            for cancels in (True, False):
                control.slow(0.2)
                update = asyncio.create_task(term.aupdate("two"))
                await in_flight(control)
                assert term.is_held() and term.remaining() > 1 and not asked.done()
                if cancels:
                    update.cancel()
                await asyncio.gather(update, return_exceptions=True)
                control.slow(0)
                assert term.is_held() and update.cancelled() == cancels
            leader = await election.aleader()
            assert leader is not None and leader.payload == "two"
            await election.arequest_stop("a hotfix waits")
            request = await asyncio.wait_for(asked, 20)
            assert request is not None and request.reason == "a hotfix waits"
            control.slow(0.2)
            update = asyncio.create_task(term.aupdate("three"))
            await in_flight(control)
        # The end of the block waited for the update.
        assert update.done() and not term.is_held()
        assert locks.elections()[0].hold is None

    asyncio.run(main())


def test_an_upgrade_keeps_the_guard(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        config, other = locks.rwlock(name), await locks.rwlock(name).read().alock()
        async with config.upgradeable() as guard:
            for _ in range(2):
                upgrade = asyncio.create_task(guard.aupgrade())
                while await config.read().atry_lock() is not None:
                    await asyncio.sleep(0)  # until it keeps readers out
                assert guard.is_held() and guard.remaining() > 1
                upgrade.cancel()
                await asyncio.gather(upgrade, return_exceptions=True)
                assert upgrade.cancelled() and guard.is_held()
            await guard.adowngrade()
            await (await config.read().alock()).arelease()
        async with config.upgradeable() as guard:
            upgrade = asyncio.create_task(guard.aupgrade())
            while await config.read().atry_lock() is not None:
                await asyncio.sleep(0)
        # The end of the block ended the wait.
        with pytest.raises(tenure.ReleasedError):
            await upgrade
        async with config.upgradeable() as guard:
            upgrade = asyncio.create_task(guard.aupgrade())
            await other.arelease()
            assert await asyncio.wait_for(upgrade, 20)
            assert await config.read().atry_lock() is None
        assert await locks.ainspect(name) is None

    asyncio.run(main())


def test_the_loss_of_a_released_guard_ends(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        guard = await locks.mutex(name).alock()
        loss = guard.lost
        await guard.arelease()
        assert await loss is None

    asyncio.run(main())


def test_a_decorator_locks_and_cancels_async_functions(locks: tenure.Locks, name: str) -> None:
    @locks.locked(name + ":{day}", on_busy="skip")
    async def report(day: str, lose: bool = False) -> str:
        if lose:
            await locks.aforce_release(f"{name}:{day}")
            await asyncio.sleep(60)
        assert await report(day) is None
        return day

    async def main() -> None:
        assert await report("monday") == "monday"
        with pytest.raises(tenure.LostError):
            await report("tuesday", lose=True)

    asyncio.run(main())


def test_loops_come_and_go(locks: tenure.Locks, name: str) -> None:
    async def take() -> tenure.Guard:
        return await locks.mutex(name).alock()

    for _ in range(3):
        guard = asyncio.run(take())  # outlives its loop
        assert guard.is_held()
        guard.release()
    kept = asyncio.run(take())
    threads = [threading.Thread(target=lambda: asyncio.run(take())) for _ in range(2)]
    for thread in threads:
        thread.start()
    kept.release()
    for thread in threads:
        thread.join(20)  # each guard is dropped with its result
    eventually(lambda: locks.inspect(name) is None)


def test_a_closed_loop_is_not_kept(locks: tenure.Locks, name: str) -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with locks.mutex(name):
            assert len(_wait.reactor_of(asyncio.get_running_loop())) == 0
            return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


def test_an_abandoned_loop_leaves_no_waiter(locks: tenure.Locks, name: str) -> None:
    held = locks.mutex(name).lock()
    loop = asyncio.new_event_loop()
    task = loop.create_task(locks.mutex(name).alock())
    loop.run_until_complete(asyncio.sleep(0.01))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    held.release()
    guard = locks.mutex(name).try_lock(20)
    assert guard is not None
    guard.release()


def test_trio_waits_in_threads(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        mutex = locks.mutex(name)
        async with mutex as guard:
            assert guard.is_held()
            with trio.move_on_after(0.05) as limit:
                await mutex.alock()
            assert limit.cancelled_caught
        with trio.fail_after(20):
            async with mutex:
                pass

    trio.run(main)


def test_without_a_loop_there_is_a_clear_error(locks: tenure.Locks, name: str) -> None:
    waiting = locks.mutex(name).alock()
    with pytest.raises(tenure.Error, match="event loop"):
        waiting.send(None)
