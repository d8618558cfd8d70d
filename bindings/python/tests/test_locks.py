"""Every kind of lock, on a Redis server."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
import weakref
from datetime import timedelta

import pytest
import tenure
from conftest import Server, eventually
from tenure import testing


def test_a_held_mutex_is_busy_for_others(locks: tenure.Locks, name: str) -> None:
    mutex = locks.mutex(name, ttl=15)
    with mutex as guard:
        assert guard.is_held() and guard.fence > 0 and 10 < guard.remaining() <= 15
        assert mutex.try_lock() is None
        assert mutex.try_lock(timeout=0.5) is None
        with pytest.raises(tenure.BusyError, match="is busy"), locks.mutex(name, timeout=timedelta(milliseconds=500)):
            pass
    assert not guard.is_held()
    again = mutex.try_lock()
    assert again is not None and again.fence > guard.fence
    again.release()
    with pytest.raises(tenure.ReleasedError):
        again.release()


def test_a_waiter_is_woken_by_the_release(locks: tenure.Locks, name: str) -> None:
    guard = locks.mutex(name).lock()
    got: list[tenure.Guard] = []
    waiter = threading.Thread(target=lambda: got.append(locks.mutex(name).lock()))
    waiter.start()
    eventually(lambda: locks.metrics().total.waiting)
    assert not got
    guard.release()
    waiter.join(20)
    assert got[0].is_held()
    got[0].release()


def test_a_fair_mutex_serves_in_order(locks: tenure.Locks, name: str) -> None:
    fair, served = locks.fair_mutex(name), []
    guard = fair.lock()

    def take(number: int) -> None:
        with fair:
            served.append(number)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        eventually(lambda: len(locks.inspect(name).waiters) == number + 1)  # type: ignore[union-attr]
    guard.release()
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2, 3, 4]


def test_a_reentrant_mutex_belongs_to_its_thread(locks: tenure.Locks, name: str) -> None:
    tree = locks.reentrant_mutex(name)
    with tree as outer, tree as inner:
        assert outer.fence == inner.fence and tree.hold_count() == 2
        other: list[object] = []
        thread = threading.Thread(target=lambda: other.append(tree.try_lock()))
        thread.start()
        thread.join(20)
        assert other == [None]
    assert tree.hold_count() == 0


def test_readers_share_and_a_writer_does_not(locks: tenure.Locks, name: str) -> None:
    config = locks.rwlock(name)
    with config.read(), config.read(), config.upgradeable() as upgradeable:
        assert config.write().try_lock() is None
        assert not upgradeable.upgrade(timeout=0)
        assert upgradeable.is_held()
    with config.upgradeable() as guard:
        assert guard.upgrade()
        assert config.read().try_lock() is None
        guard.downgrade()
        with config.read():
            pass
        with pytest.raises(tenure.InvalidError, match="upgradeable"):
            guard.upgrade()
        assert guard.is_held()


def test_a_semaphore_has_permits(locks: tenure.Locks, name: str) -> None:
    render = locks.semaphore(name, 3)
    with render, render.many(2):
        assert render.try_lock() is None
        render.set_permits(4)
        more = locks.semaphore(name, 4).try_lock()
        assert more is not None
        more.release()
    with pytest.raises(tenure.InvalidError):
        render.many(9)


def test_a_multi_lock_takes_all_or_none(locks: tenure.Locks, name: str) -> None:
    parts = locks.mutex(name + "a"), locks.rwlock(name + "b").read(), locks.semaphore(name + "c", 2)
    both = tenure.multi(*parts)
    with both as guard:
        assert len(guard.fences) == 3
        assert both.try_lock() is None
        guard.verify()
    busy = locks.mutex(name + "a").lock()
    assert tenure.multi(*reversed(parts)).try_lock() is None
    assert locks.inspect(name + "c") is None
    busy.release()


def test_a_multi_lock_has_a_token_for_each_of_two_locks_of_one_name() -> None:
    locks = tenure.connect("memory:")
    there = locks.configured(prefix="there:")
    with there.mutex("a"):
        pass
    with tenure.multi(there.mutex("a"), locks.mutex("a")) as guard:
        held = [of.inspect("a") for of in (there, locks)]
        assert guard.fences == [status.holders[0].fence for status in held if status is not None]
        assert len(guard.fences) == 2 and guard.fences[0] != guard.fences[1]


def test_a_renewal_of_a_multi_lock_renews_each_lock() -> None:
    locks, control = testing.store()
    unrenewed = locks.configured(ttl=15, renew=False)
    with unrenewed.multi("a", "b") as guard:
        for _ in range(3):
            control.advance(10)
            guard.renew()
            assert guard.is_held()
        control.lose("a")
        with pytest.raises(tenure.LostError, match="`a`"):
            guard.renew()
        pytest.raises(tenure.LostError, guard.release)


def test_a_holder_of_several_locks_is_asked_to_stop(locks: tenure.Locks, name: str) -> None:
    with locks.multi(name + "a", name + "b") as guard:
        assert locks.stop_requested(guard, timeout=0.01) is None
        assert locks.request_stop(name + "b", "a hotfix waits") is not None
        asked = locks.stop_requested(guard, timeout=20)
        assert asked is not None and asked.reason == "a hotfix waits"


def test_a_dropped_guard_with_a_callback_is_released(locks: tenure.Locks, name: str) -> None:
    guards = [locks.mutex(name, on_lost=print).lock()]
    dropped = weakref.ref(guards[0])
    guards.clear()
    gc.collect()
    assert dropped() is None
    eventually(lambda: locks.inspect(name) is None)


def test_a_time_is_a_number_or_a_timedelta(locks: tenure.Locks, name: str) -> None:
    for wrong in (True, "5", None, [5]):
        with pytest.raises(tenure.InvalidError, match="ttl: got .*, expected seconds or a timedelta"):
            locks.mutex(name, ttl=wrong)  # type: ignore[arg-type]
    with pytest.raises(tenure.InvalidError, match="expected seconds or a timedelta"):
        locks.mutex(name).try_lock(timeout="5")  # type: ignore[arg-type]


def test_one_lock_object_serves_many_threads(locks: tenure.Locks, name: str) -> None:
    render, held, leave = locks.semaphore(name, 4), threading.Barrier(5), threading.Event()
    fences: set[int] = set()

    def work() -> None:
        with render as guard:
            held.wait(20)
            leave.wait(20)
            fences.add(guard.fence)
        assert not guard.is_held()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    held.wait(20)
    leave.set()
    for thread in threads:
        thread.join(20)
    assert len(fences) == 4 and locks.inspect(name) is None


def test_a_loss_is_reported_with_its_reason(locks: tenure.Locks, name: str) -> None:
    reasons: list[tenure.LostError] = []
    guard = locks.mutex(name, on_lost=reasons.append).lock()
    assert not guard.lost.is_set() and not guard.lost.wait(timeout=0.01)
    locks.force_release(name)
    with pytest.raises(tenure.LostError, match=name):
        guard.verify()
    assert guard.lost.wait(20) and guard.lost.reason and guard.lost.reason.lock == name
    eventually(lambda: reasons)
    assert str(reasons[0]) == str(guard.lost.reason)
    with pytest.raises(tenure.LostError):
        guard.release()
    released = locks.mutex(name, on_lost=reasons.append).lock()
    loss = released.lost
    released.release()
    assert not loss.wait(20) and len(reasons) == 1


def test_a_block_whose_lock_was_lost_raises_unless_it_failed(locks: tenure.Locks, name: str) -> None:
    with pytest.raises(tenure.LostError), locks.mutex(name):
        locks.force_release(name)
    with pytest.raises(ZeroDivisionError), locks.mutex(name):
        locks.force_release(name)
        raise ZeroDivisionError


def test_a_detached_hold_is_resumed(locks: tenure.Locks, name: str) -> None:
    owner = locks.mutex(name).lock().detach()
    assert locks.mutex(name).try_lock() is None
    left = locks.renew_detached(name, owner)
    assert left is not None and left > 10
    guard = locks.resume(name, owner)
    assert guard is not None and guard.owner == owner
    guard.release()
    assert locks.resume(name, owner) is None


def test_a_kept_lock_stays_taken(locks: tenure.Locks, name: str) -> None:
    locks.mutex(name).lock().keep_for(60)
    status = locks.inspect(name)
    assert status is not None and 50 < (status.holders[0].remaining or 0) <= 60
    assert locks.mutex(name).try_lock() is None


def test_a_hold_without_renewal_ends_by_itself(locks: tenure.Locks, name: str) -> None:
    guard = locks.mutex(name, ttl=0.2, renew=False).lock()
    guard.renew()
    assert guard.lost.wait(20) and not guard.is_held()


def test_inspect_and_list_show_holders(locks: tenure.Locks, name: str) -> None:
    with locks.mutex(name, label="nightly report") as guard:
        status = locks.inspect(name)
        assert status is not None and status.kind == "mutex" and status.foreign is None
        assert status.holders[0].owner == guard.owner and status.holders[0].label == "nightly report"
        assert status.holders[0].since is not None
        assert [status.name for status in locks.list(name)] == [name]
    assert locks.inspect(name) is None and list(locks.list(name)) == []


def test_the_owner_of_a_reentrant_mutex_has_its_label(locks: tenure.Locks, name: str) -> None:
    shop = locks.configured(label="shop")
    with shop.reentrant_mutex(name), shop.reentrant_mutex(name):
        status = shop.inspect(name)
        assert status is not None and status.holders[0].label == "shop"
        # Another label is another owner.
        assert locks.reentrant_mutex(name).try_lock() is None
    with locks.reentrant_mutex(name, label="one") as guard:
        status = locks.inspect(name)
        assert status is not None and status.holders[0].label == "one" and status.holders[0].owner == guard.owner


def test_metrics_count(locks: tenure.Locks, name: str) -> None:
    counted = locks.configured(prefix="metrics:", group_by=":")
    before = counted.metrics().total
    with counted.mutex(f"orders:{name}"):
        assert counted.mutex(f"orders:{name}").try_lock() is None
        now = counted.metrics()
        assert (now.total.acquired, now.total.busy) == (before.acquired + 1, before.busy + 1)
        assert any(one.group == "orders" and one.held == 1 for one in now.locks)
        assert now.requests["acquire", "answered"] > 0
        assert 'tenure_held{store="' in now.prometheus
    counted.cache(name, ttl=60).get_or_compute(lambda: "value")
    now, filled = counted.metrics(), ("cache_fills", "filled")
    assert now.total.uses[filled] == before.uses.get(filled, 0) + 1
    assert now.total.fill.count == before.fill.count + 1


def test_a_decorator_locks_sync_functions(locks: tenure.Locks, name: str) -> None:
    @locks.locked(name + ":{day}", on_busy="skip", guard="guard")
    def report(day: str, guard: tenure.Guard | None = None) -> tuple[str, bool]:
        assert guard is not None
        return day, report("monday") is None

    assert report("monday") == ("monday", True)

    @locks.locked(name, on_busy="raise", timeout=0.5, kind="fair")
    def exclusive() -> None:
        exclusive()

    with pytest.raises(tenure.BusyError):
        exclusive()


def test_errors_have_the_words_of_the_command(locks: tenure.Locks, server: Server, name: str) -> None:
    with pytest.raises(tenure.InvalidError) as invalid:
        locks.mutex("")
    assert invalid.value.kind == "invalid" and isinstance(invalid.value, ValueError)
    with locks.mutex(name), pytest.raises(tenure.MismatchError) as mismatch:
        locks.rwlock(name).read().lock()
    assert mismatch.value.lock == name and mismatch.value.store == locks.url
    copy = pickle.loads(pickle.dumps(mismatch.value))
    assert (type(copy), str(copy), copy.lock) == (tenure.MismatchError, str(mismatch.value), name)
    with pytest.raises(tenure.UnreachableError, match="refused"):
        tenure.connect("redis://127.0.0.1:1")
    with pytest.raises(tenure.InvalidError, match="ttl"):
        locks.mutex(name, ttl=0.001)
    with pytest.raises(tenure.InvalidError, match="expected seconds from 0"):
        locks.mutex(name).try_lock(timeout=-1)
    server.client.lpush(name + "list", "x")
    with pytest.raises(tenure.MismatchError):
        locks.force_release(name + "list")


def test_reprs_show_the_state(locks: tenure.Locks, name: str) -> None:
    mutex = locks.mutex(name)
    guard = mutex.lock()
    assert repr(locks) == f"<tenure.Locks '{locks.url}'>"
    assert repr(mutex) == f"<tenure.Mutex '{name}' at {locks.url}>"
    assert repr(guard).startswith(f"<tenure.Guard '{name}' fence={guard.fence} held, 1")
    assert repr(guard.lost) == "<tenure.Loss not lost>"
    guard.release()
    assert repr(guard).endswith("released>")


def test_stores_and_locks_are_pickled_but_not_guards(locks: tenure.Locks, name: str) -> None:
    copy = pickle.loads(pickle.dumps(locks.mutex(name, ttl=33)))
    with copy as guard:
        assert 30 < guard.remaining() <= 33 and locks.mutex(name).try_lock() is None
        with pytest.raises(TypeError, match="detach"):
            pickle.dumps(guard)
    secret = tenure.open_lazily(locks.url, credentials=lambda: (None, "secret"))
    for bound in (secret, secret.mutex(name), tenure.quorum(locks, tenure.connect("memory:")), testing.store()[0]):
        with pytest.raises(TypeError, match="open the store in the other process"):
            pickle.dumps(bound)


def test_events_go_to_logging(
    url: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG, "tenure"):
        locks = tenure.connect(url, op_timeout=20)
        guard = locks.mutex(name).lock()
        locks.force_release(name)
        assert guard.lost.wait(20)
        locks.flush()
        eventually(lambda: [record for record in caplog.records if getattr(record, "event", "") == "lock_lost"])
    tenure.connect("memory:")  # reads the level again
    events = {getattr(record, "event", "") for record in caplog.records}
    assert {"lock_acquired", "lock_lost"} <= events
    lost = next(record for record in caplog.records if getattr(record, "event", "") == "lock_lost")
    assert name in lost.getMessage() and lost.levelno == logging.WARNING
    caplog.clear()
    with locks.mutex(name):
        pass
    assert not caplog.records


def test_a_quorum_keeps_mutexes(locks: tenure.Locks, name: str) -> None:
    members = [tenure.connect("memory:") for _ in range(3)]
    quorum = tenure.quorum(*members)
    with quorum.mutex(name):
        assert sum(member.inspect(name) is not None for member in members) >= 2
    with pytest.raises(tenure.UnsupportedError):
        quorum.fair_mutex(name)
