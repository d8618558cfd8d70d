"""The store for tests of programs that lock."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
import tenure
from tenure import testing


def test_time_passes_at_once_and_leases_are_renewed() -> None:
    locks, control = testing.store()
    guard = locks.mutex("nightly", ttl=15).lock()
    control.advance(3600)
    assert guard.is_held()
    unrenewed = locks.mutex("other", renew=False).lock()
    control.advance(20)
    assert not unrenewed.is_held() and guard.is_held()
    control.suspend(60)
    assert not guard.is_held() and guard.lost.is_set()


def test_faults_are_injected() -> None:
    locks, control = testing.store()
    with control.hold_elsewhere("nightly"):
        assert locks.mutex("nightly").try_lock() is None
    with control.outage(), pytest.raises(tenure.UnreachableError):
        locks.mutex("nightly").try_lock()
    with locks.mutex("nightly") as guard:
        pass
    assert guard.fence > 0
    control.forget_requests()
    with pytest.raises(tenure.LostError), locks.mutex("nightly") as guard:
        assert control.lose("nightly")
        assert guard.lost.wait(20)
    assert control.requests()[0] == "acquire nightly: held"
    with control.elsewhere().rwlock("table").read():
        assert locks.rwlock("table").write().try_lock() is None
    control.slow(0.01)
    locks.mutex("slow").lock().release()


def test_a_nightly_job_runs_at_the_hour_that_the_test_chose() -> None:
    night = datetime(2030, 5, 1, tzinfo=timezone(timedelta(hours=-1)))
    locks, control = testing.store(at=night)
    nightly = locks.once_per("nightly", tenure.daily(at=2 * 3600), open_for=3600)
    assert not nightly.run(lambda: None)
    control.advance(3600)
    assert nightly.run(lambda: None) and not nightly.run(lambda: None)
    last = nightly.last()
    assert last is not None and last.window[0] == night + timedelta(hours=1)
    for time in (datetime(2030, 5, 1), datetime(1969, 1, 1, tzinfo=timezone.utc)):
        with pytest.raises(tenure.InvalidError):
            testing.store(at=time)


def test_it_works_in_an_event_loop() -> None:
    async def main() -> None:
        locks, control = testing.store()
        async with locks.mutex("nightly") as guard:
            await control.aadvance(60)
            assert guard.is_held()
            control.lose("nightly")
            assert isinstance(await guard.lost, tenure.LostError)

    with pytest.raises(tenure.LostError):
        asyncio.run(main())
