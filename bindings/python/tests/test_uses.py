"""Caches, jobs that run once, elections."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import tenure
from conftest import Server, eventually


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
    with pytest.raises(tenure.InvalidError, match="codec: got 'xml', expected json, text, bytes, pickle"):
        locks.cache(name, ttl=60, codec="xml")
    computed: list[int] = []
    uncached = locks.cache(name + "uncached", ttl=60)
    for _ in range(2):
        assert uncached.get_or_compute(lambda: tenure.Uncached(len(computed))) == len(computed)
        computed.append(1)
    assert uncached.get() is None


def test_a_refresh_may_find_no_value(locks: tenure.Locks, name: str) -> None:
    cache = locks.cache(name, ttl=60)
    assert cache.refresh(lambda: "stored") == "stored"
    assert cache.refresh(lambda: tenure.Uncached("only now")) == "only now" and cache.get() is None
    assert cache.refresh(lambda: tenure.Absent(ttl=timedelta(seconds=30))) is None
    assert cache.get_or_compute(lambda: pytest.fail("it is known to be absent")) is None

    async def absent() -> tenure.Absent:
        return tenure.Absent(ttl=30)

    assert asyncio.run(cache.arefresh(absent)) is None


def test_a_value_that_a_codec_would_change_is_refused(locks: tenure.Locks, name: str) -> None:
    pair = (lambda value: repr(value).encode(), lambda text: eval(text))  # noqa: S307
    for number, value in enumerate([(1, 2), {"a": (1,)}, {1: 2}, datetime(2026, 1, 1), {"now": datetime(2026, 1, 1)}]):
        with pytest.raises(tenure.InvalidError, match="codec json"):
            locks.cache(name, 60).get_or_compute(lambda value=value: value)  # type: ignore[misc]
        for codec in ("pickle", pair):
            cache = locks.cache(f"{name}{number}{codec is pair}", 60, codec=codec)  # type: ignore[arg-type]
            if codec is pair and number > 2:
                continue  # the pair does not know times
            assert cache.get_or_compute(lambda value=value: value) == value == cache.get()  # type: ignore[misc]
    assert locks.cache(name, 60).get_or_compute(lambda: [1, None, {"a": 0.5}]) == [1, None, {"a": 0.5}]
    for wrong, value in (("bytes", 8), ("bytes", "text"), ("text", b"bytes")):
        with pytest.raises(tenure.InvalidError, match=f"codec {wrong}"):
            locks.cache(name + wrong, 60, codec=wrong).get_or_compute(lambda value=value: value)  # type: ignore[misc]
    for codec in ((len,), (len, 3), ("json", "text"), 3):
        with pytest.raises(tenure.InvalidError, match="codec"):
            locks.cached(name, 60, codec=codec)
    # Another codec does not read what this one has written.
    locks.cache(name + "other", 60, codec="pickle").get_or_compute(lambda: 1)
    assert locks.cache(name + "other", 60).get() is None


def test_a_cached_function_is_refreshed_and_invalidated(locks: tenure.Locks, name: str) -> None:
    computed: list[int] = []

    @locks.cached(name + ":{of}", ttl=60)
    def square(of: int) -> int:
        computed.append(of)
        return of * of

    assert (square(3), square(of=3), square(4), computed) == (9, 9, 16, [3, 4])
    assert square.refresh(3) == 9 and computed == [3, 4, 3]
    square.invalidate(of=3)
    assert (square(3), square(4), computed) == (9, 16, [3, 4, 3, 3])

    @locks.cached(name + "a:{of}", ttl=60)
    async def cube(of: int) -> int:
        computed.append(of)
        return of**3

    async def main() -> None:
        computed.clear()
        assert (await cube(2), await cube.refresh(2), await cube(2)) == (8, 8, 8) and computed == [2, 2]
        await cube.invalidate(2)
        assert await cube(2) == 8 and computed == [2, 2, 2]

    asyncio.run(main())


def test_one_caller_fills_a_cache_of_its_own(locks: tenure.Locks, name: str) -> None:
    table: dict[str, int] = {}
    computed: list[int | None] = []

    def compute(fence: int | None) -> int:
        computed.append(fence)
        table["report"] = 42
        return 42

    def get() -> int | None:
        return table.get("report")

    fill, values = locks.fill(name), []
    threads = [threading.Thread(target=lambda: values.append(fill.run(get, compute))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert values == [42] * 8 and len(computed) == 1 and computed[0]

    async def aget() -> int | None:
        return get()

    async def acompute(fence: int | None) -> int:
        await asyncio.sleep(0)
        return compute(fence)

    table.clear()
    assert asyncio.run(fill.arun(aget, acompute)) == 42 and len(computed) == 2
    table.clear()
    with pytest.raises(ZeroDivisionError):
        fill.run(get, lambda fence: 1 // 0)
    alone = tenure.open_lazily("redis://127.0.0.1:1").fill(name)
    assert alone.run(get, compute) == 42 and computed[-1] is None
    with pytest.raises(tenure.UnreachableError):
        table.clear()
        tenure.open_lazily("redis://127.0.0.1:1").fill(name, outage="fail").run(get, compute)


def test_holders_leaders_and_jobs_are_asked_to_stop(locks: tenure.Locks, name: str) -> None:
    named = locks.configured(prefix="stop:")
    assert named.request_stop(name, "nobody") is None
    with named.mutex(name) as guard:
        assert named.stop_requested(guard, timeout=0.01) is None
        status = named.request_stop(name, "a hotfix waits")
        assert status is not None and status.holders[0].owner == guard.owner
        asked = named.stop_requested(guard, timeout=20)
        assert asked is not None and asked.reason == "a hotfix waits" and asked.by
    with locks.mutex(name) as guard:  # the end of a block does not wait for a request to stop
        waiting: list[object] = []
        thread = threading.Thread(target=lambda: waiting.append(locks.stop_requested(guard)))
        thread.start()
        guard.release()
        thread.join(20)
        assert waiting == [None]
    election, job = locks.election(name + "e"), locks.once_per(name + "j", 3600)
    assert election.request_stop() is None and job.request_stop() is None
    with election.campaign() as term:
        leader = election.request_stop("it hangs")
        assert leader is not None and leader.fence == term.fence
        asked = term.stop_requested(timeout=20)
        assert asked is not None and asked.reason == "it hangs"
    turn = job.try_begin()
    assert turn is not None
    with turn:
        last = job.request_stop("it is slow")
        assert last is not None and last.remaining is not None and 0 < last.remaining <= locks.ttl
        assert asyncio.run(turn.astop_requested()) == turn.stop_requested(timeout=20)
    ended = job.last()
    assert ended is not None and ended.remaining is None


def test_a_leader_leads_while_its_work_runs(locks: tenure.Locks, server: Server, name: str) -> None:
    election = locks.configured(ttl=0.6).election(name, "host-1")
    changes = election.observe()
    assert changes.try_next() is None
    assert election.lead(lambda term: (term.is_held(), election.leader() is not None)) == (True, True)
    assert [changes.try_next().kind, changes.try_next().kind] == ["elected", "resigned"]  # type: ignore[union-attr]

    def depose() -> None:
        server.client.delete(*server.client.keys(f"*{name}*"))

    async def work(term: tenure.Term) -> None:
        depose()
        await asyncio.sleep(60)

    def lose(term: tenure.Term) -> None:
        depose()
        assert term.lost.wait(20)

    async def main() -> None:
        with pytest.raises(tenure.LostError):
            await election.alead(work)

    asyncio.run(main())
    with pytest.raises(tenure.LostError):
        election.lead(lose)
    with pytest.raises(tenure.InvalidError, match="alead"):
        election.lead(work)


def test_a_candidate_leads_again_after_an_error_and_a_loss(locks: tenure.Locks, server: Server, name: str) -> None:
    election, stop, terms = locks.configured(ttl=0.6).election(name, "host-1"), threading.Event(), list[int]()

    def enter(term: tenure.Term) -> int:
        terms.append(term.fence)
        (listed,) = locks.elections(name)
        leader, hold = listed.leader, listed.hold
        assert leader is not None and (leader.payload, leader.fence) == ("host-1", term.fence)
        assert hold is not None and (hold.owner, listed.candidates) == (term.owner, [])
        if len(terms) % 3 == 2:
            server.client.delete(*server.client.keys(f"*{name}*"))
        return len(terms) % 3

    def work(term: tenure.Term) -> None:
        turn = enter(term)
        if turn == 1:
            raise RuntimeError("no disk")
        if turn == 2:
            assert term.lost.wait(20)
        else:
            stop.set()

    async def awork(term: tenure.Term) -> None:
        turn = enter(term)
        if turn == 1:
            raise RuntimeError("no disk")
        if turn == 2:
            await asyncio.sleep(60)
        raise asyncio.CancelledError

    election.lead_forever(work, stop)
    assert len(terms) == 3
    stop.clear()
    with election.campaign():  # a candidate that waits can be stopped
        candidate = threading.Thread(target=locks.election(name).lead_forever, args=(work, stop))
        candidate.start()
        eventually(lambda: locks.elections(name)[0].candidates)
        stop.set()
        candidate.join(20)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(election.alead_forever(awork))
    assert len(terms) == 6
    with pytest.raises(tenure.InvalidError, match="alead_forever"):
        election.lead_forever(awork)


def test_one_grant_is_released_by_force(locks: tenure.Locks, server: Server, name: str) -> None:
    guard = locks.fair_mutex(name).lock() # whose token is at the store
    assert locks.force_release_token(name, guard.fence + 1).kind == "other" and guard.is_held()
    ended = locks.force_release_token(name, guard.fence)
    assert ended.kind == "ended" and ended.status is not None and ended.status.holders[0].owner == guard.owner
    assert locks.force_release_token(name, guard.fence).kind == "free"
    guard = locks.mutex(name).lock()
    assert locks.force_release_owner(name, guard.owner).kind == "ended"
    assert locks.force_release_owner(name, guard.owner).kind == "free"
    server.client.set(name, "theirs")
    status = locks.force_release_foreign(name)
    assert status is not None and status.foreign and server.client.get(name) is None


def test_a_login_is_asked_for_at_each_dial(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        server.client.execute_command("ACL", "SETUSER", "locks", "on", ">first", "~*", "&*", "+@all")
        logins: list[tuple[str | None, str]] = [("locks", "first")]
        asked: list[int] = []

        def login() -> tuple[str | None, str]:
            asked.append(1)
            return logins[-1]

        locks = tenure.connect(server.url, credentials=login, op_timeout=20)
        assert server.client.acl_whoami() == "default" and asked
        guard = locks.mutex("x").lock()
        server.client.execute_command("ACL", "SETUSER", "locks", "resetpass", ">second")
        logins.append(("locks", "second"))
        before = len(asked)
        server.client.client_kill_filter(_type="normal", skipme=True)
        guard.verify()
        assert len(asked) > before and guard.is_held()
        with pytest.raises(tenure.Error):
            tenure.connect(server.url, credentials=lambda: ("locks", "wrong"), op_timeout=2)
        with pytest.raises(tenure.Error, match="no login today"):
            tenure.connect(server.url, credentials=no_login, op_timeout=2)
    finally:
        server.stop()


def test_a_slow_login_is_asked_for_once_at_a_time(server: Server) -> None:
    server.client.execute_command("ACL", "SETUSER", "slow", "on", ">word", "~*", "&*", "+@all")
    called, go, calls = threading.Event(), threading.Event(), []

    def login() -> tuple[str | None, str]:
        calls.append(1)
        called.set()
        assert go.wait(20)
        return "slow", "word"

    locks = tenure.open_lazily(server.url, credentials=login, op_timeout=0.5)
    for _ in range(3):  # several dials without an answer in time
        with pytest.raises(tenure.Error, match="has not returned yet"):
            locks.ping()
    assert called.is_set()
    go.set()
    locks.configured(op_timeout=20).ping()
    assert len(calls) <= 2


def no_login() -> tuple[str | None, str]:
    raise KeyError("no login today")


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


def test_jobs_are_listed_with_their_last_runs(locks: tenure.Locks, name: str) -> None:
    job = locks.once_per(name, 3600)
    with pytest.raises(ZeroDivisionError):
        job.run(lambda turn: 1 / 0)
    assert job.run(lambda turn: 7).value == 7
    [listed] = locks.jobs(name)
    assert (listed.name, listed.last.outcome, listed.overdue) == (name, "done", None)
    assert [run.outcome for run in listed.runs] == ["done", "failed"]
    assert listed.runs[0].host == listed.runs[1].host and listed.runs[1].code is None
    assert listed.next == listed.last.window[1] and listed.last.ended is not None
    assert asyncio.run(locks.ajobs(name)) == [listed]
