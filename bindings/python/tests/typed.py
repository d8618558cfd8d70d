"""How programs use the package, for the type checkers: nothing here runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Optional

import tenure
from tenure import testing


def works(turn: tenure.Turn) -> bool:
    return turn.is_held()


def sync(locks: tenure.Locks) -> Optional[int]:
    with locks.mutex("invoice:42", ttl=timedelta(seconds=15), label="billing") as guard:
        fence: int = guard.fence
        reason: Optional[tenure.LostError] = guard.lost.reason
        print(fence, reason)
    if (held := locks.mutex("noon").try_lock(timeout=2)) is not None:
        held.release()
    with locks.rwlock("config").upgradeable() as upgradeable:
        upgraded: bool = upgradeable.upgrade(timeout=1)
        print(upgraded)
    with tenure.multi(locks.mutex("a"), locks.rwlock("b").read(), locks.semaphore("c", 3)) as guards:
        fences: list[int] = guards.fences
        print(fences)
    run: tenure.Run[int] = locks.once_per("digest", tenure.daily(2 * 3600)).run(len, "abc")
    window: tenure.Run[bool] = locks.once_per("digest", 60).run(works)
    print(window)
    asked: Optional[tenure.LastRun] = locks.once_per("digest", 60).request_stop("it hangs")
    led: int = locks.election("scheduler").lead(lambda term: term.fence)
    print(asked, led)
    status: Optional[tenure.Status] = locks.inspect("invoice:42")
    print([holder.pid for holder in status.holders] if status else None)
    return run.value


@tenure.connect("memory:").locked("report:{day}", on_busy="skip")
def report(day: str) -> str:
    return day


text: str = report("monday")


@tenure.connect("memory:").cached("square:{of}", ttl=60)
def square(of: int) -> int:
    return of * of


number: int = square(3) + square.refresh(3)
square.invalidate(of=3)


@tenure.connect("memory:").cached("cube:{of}", ttl=60, codec="pickle")
async def cube(of: int) -> int:
    return of**3


async def cached() -> None:
    number: int = await cube(3) + await cube.refresh(3)
    await cube.invalidate(3)
    print(number)


async def asynchronous() -> None:
    locks = await tenure.aconnect("redis://localhost")
    async with locks.fair_mutex("x") as guard:
        with guard.cancel_on_loss():
            await guard.averify()
    lost: Optional[tenure.LostError] = await guard.lost
    print(lost)
    async for status in locks.alist("orders:"):
        print(status.name)
    async with await locks.election("scheduler", "host-1").acampaign() as term:
        await term.aupdate("host-2")
    ran: tenure.Run[str] = await locks.once_per("digest", 3600).arun(work)
    print(ran.value)


async def work() -> str:
    return "done"


def fake() -> None:
    locks, control = testing.store()
    with control.hold_elsewhere("nightly"):
        assert locks.mutex("nightly").try_lock() is None
