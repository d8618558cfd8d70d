"""Caches, jobs that run once, elections."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone

import pytest
import tenure


def test_a_cache_computes_once_for_many_threads(locks: tenure.Locks, name: str) -> None:
    computed, values = [], []

    def compute() -> dict[str, int]:
        computed.append(1)
        return {"answer": 42}

    def get() -> None:
        values.append(locks.cache(name, ttl=60, jitter=0.0).get_or_compute(compute))

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(computed) == 1 and values == [{"answer": 42}] * 8
    cache = locks.cache(name, ttl=60)
    assert cache.get() == {"answer": 42}
    assert cache.refresh(lambda: "new") == "new"
    cache.invalidate()
    assert cache.get() is None


def test_a_failed_computation_raises_and_is_not_kept(locks: tenure.Locks, name: str) -> None:
    cache = locks.cache(name, ttl=60, codec="text")
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute(lambda: str(1 / 0))
    assert cache.get_or_compute(lambda: "value") == "value"
    absent = locks.cache(name + "absent", ttl=60)
    assert absent.get_or_compute(lambda: tenure.Absent(ttl=30)) is None
    assert absent.get_or_compute(lambda: pytest.fail("it is known to be absent")) is None
    with pytest.raises(tenure.InvalidError, match="codec"):
        locks.cache(name, ttl=60, codec="pickle")


def test_a_cache_in_an_event_loop(locks: tenure.Locks, name: str) -> None:
    @locks.cached(name + ":{of}", ttl=60, codec="bytes")
    async def double(of: int) -> bytes:
        computed.append(of)
        await asyncio.sleep(0.01)
        return b"x" * (2 * of)

    computed: list[int] = []

    async def main() -> None:
        assert await asyncio.gather(*(double(3) for _ in range(10))) == [b"xxxxxx"] * 10
        assert computed == [3]
        cache = locks.cache(name + "cancelled", ttl=60)
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(cache.aget_or_compute(hang))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def value() -> str:
            return "next"

        assert await asyncio.wait_for(cache.aget_or_compute(value), 20) == "next"
        assert await cache.aget() == "next"
        assert await cache.arefresh(value) == "next"
        await cache.ainvalidate()

    asyncio.run(main())


def test_a_cache_without_its_store_computes(name: str) -> None:
    locks = tenure.open_lazily("redis://127.0.0.1:1")
    assert locks.cache(name, ttl=60).get_or_compute(lambda: 1) == 1
    with pytest.raises(tenure.UnreachableError):
        locks.cache(name, ttl=60, outage="fail").get_or_compute(lambda: 1)


def test_a_job_runs_once_in_its_window(locks: tenure.Locks, name: str) -> None:
    job = locks.once_per(name, timedelta(days=1))
    with pytest.raises(ZeroDivisionError):
        job.run(lambda: 1 / 0)
    last = job.last()
    assert last is not None and last.outcome == "failed" and last.why == "ZeroDivisionError: division by zero"
    ran = job.run(max, 3, 4)
    assert ran and ran.value == 4
    assert not job.run(max, 3, 4) and job.try_begin() is None
    last = job.last()
    assert last is not None and last.outcome == "done" and last.window[0] <= last.begun < last.window[1]
    assert last.succeeded is not None and last.succeeded >= last.begun
    assert locks.once_per(name, timedelta(days=1), again=True).run(max, 3, 4).value == 4
    assert not job.run(max, 3, 4)
    job.reset()
    turn = job.try_begin()
    assert turn is not None
    turn.fail("no disk")
    with pytest.raises(tenure.InvalidError, match="reopens on"):
        locks.once_per(name, 60, reopens_on="never")


def test_windows_may_be_a_function(locks: tenure.Locks, name: str) -> None:
    def window(now: datetime) -> tuple[datetime, datetime]:
        assert now.tzinfo is timezone.utc
        return now.replace(minute=0, second=0, microsecond=0), now + timedelta(hours=2)

    async def main() -> None:
        async def work() -> str:
            return "done"

        job = locks.once_per(name, window)
        assert (await job.arun(work)).value == "done"
        assert not await job.arun(work)
        last = await job.alast()
        assert last is not None and last.window[0].minute == 0
        await job.areset()
        turn = await job.atry_begin()
        assert turn is not None
        await turn.afail("no")

    asyncio.run(main())
    assert locks.once_per(name + "daily", tenure.daily(at=3600)).run(int)


def test_one_candidate_leads(locks: tenure.Locks, name: str) -> None:
    election = locks.election(name, "host-1:8080")
    changes = election.observe()
    with election.campaign() as term:
        leader = election.leader()
        assert leader is not None and (leader.payload, leader.fence) == ("host-1:8080", term.fence)
        term.update("host-1:9090")
        assert next(changes).kind in ("elected", "updated")
        successor: list[tenure.Term] = []
        candidate = threading.Thread(target=lambda: successor.append(locks.election(name, "host-2").campaign()))
        candidate.start()
    candidate.join(20)
    leader = election.leader()
    assert leader is not None and leader.payload == "host-2" and successor[0].fence > term.fence
    successor[0].release()
    assert election.leader() is None


def test_an_election_in_an_event_loop(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        election = locks.election(name, "host-1")
        async with await election.acampaign() as term:
            await term.aupdate("host-2")
            async for change in election.observe():
                assert change.kind == "elected" and change.leader is not None and change.leader.payload == "host-2"
                break
        assert await election.aleader() is None

    asyncio.run(main())


def test_a_lost_job_is_cancelled(locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        job = locks.once_per(name, 3600)

        async def work() -> None:
            await locks.once_per(name, 3600).areset()
            await asyncio.sleep(60)

        with pytest.raises(tenure.LostError):
            await job.arun(work)

    asyncio.run(main())
