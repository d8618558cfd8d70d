"""Greenlets of gevent and eventlet. Each case is a separate program, because monkey-patching is for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tenure
from conftest import Program

Start = Callable[..., Program]


@pytest.mark.parametrize("first", ["gevent", "tenure"])
def test_greenlets_wait_for_each_other(url: str, name: str, program: Start, first: str) -> None:
    imports = ["from gevent import monkey; monkey.patch_all()", "import tenure"]
    program(
        "\n".join(imports if first == "gevent" else reversed(imports))
        + """
import gevent, sys
locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]
mutex, holding, ran = locks.mutex(name), [], []

def turn(number):
    with mutex:
        assert not holding
        holding.append(number)
        gevent.sleep(0.001)
        holding.pop()
        ran.append(number)

# More than the hub has threads.
gevent.joinall([gevent.spawn(turn, number) for number in range(60)], raise_error=True)
assert sorted(ran) == list(range(60)), ran

# The holder's greenlet runs while another waits, and a wait has limits.
guard = mutex.lock()
waiter = gevent.spawn(mutex.lock)
assert mutex.try_lock(timeout=0.5) is None
assert not guard.lost.wait(timeout=0.01)
killed = gevent.spawn(mutex.lock)
gevent.sleep(0.01)
killed.kill()
try:
    with gevent.Timeout(0.05):
        mutex.lock()
except gevent.Timeout:
    pass
else:
    raise AssertionError("the lock is held")
guard.release()
waiter.get(timeout=20).release()

# A greenlet is an owner.
tree = locks.reentrant_mutex(name + "r")
with tree, tree:
    assert gevent.spawn(tree.try_lock).get(timeout=20) is None

# A callback may block.
lost = []
def told(reason):
    with locks.mutex(name + "c"):
        lost.append(reason)
guard = locks.mutex(name + "l", on_lost=told).lock()
locks.force_release(name + "l")
assert guard.lost.wait(20)
while not lost:
    gevent.sleep(0.002)

cache = locks.cache(name + "v", 60)
def compute():
    gevent.sleep(0.01)
    return 42
values = gevent.joinall([gevent.spawn(cache.get_or_compute, compute) for _ in range(10)])
assert [value.get() for value in values] == [42] * 10
hub = gevent.get_hub()
assert hub.join(20), "an idle store keeps the loop alive"
""",
        url,
        name,
    ).end(60)
    assert tenure.connect(url).inspect(name) is None


def test_native_threads_and_children_beside_greenlets(url: str, name: str, program: Start) -> None:
    program(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, gevent.os, os, sys, tenure
        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]
        mutex = locks.mutex(name)
        guard = mutex.lock()

        def turn():
            with mutex:
                pass

        waiting = [gevent.get_hub().threadpool.spawn(turn), gevent.spawn(turn)]
        gevent.sleep(0.05)
        child = gevent.os.fork()
        if child == 0:
            with locks.mutex(name + "child"):
                assert gevent.spawn(mutex.try_lock).get() is None
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        guard.release()
        for one in waiting:
            one.get(timeout=20)
        """,
        url,
        name,
    ).end(60)


def test_eventlet_is_refused(url: str, name: str, program: Start) -> None:
    refused = program(
        """
        import sys, types
        patcher = types.ModuleType("eventlet.patcher")  # what its monkey_patch leaves behind
        patcher.already_patched = {"socket": True}
        sys.modules["eventlet.patcher"] = patcher
        import tenure
        try:
            tenure.connect(sys.argv[1])
        except tenure.UnsupportedError as error:
            print(error)
        """,
        url,
    )
    assert "eventlet" in refused.end()


def test_a_candidate_waits_in_a_greenlet(url: str, name: str, program: Start) -> None:
    program(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, gevent.event, sys, threading, tenure
        from tenure import _leaders, _wait
        election = tenure.connect(sys.argv[1], op_timeout=20).election(sys.argv[2])
        waited, stop, led = gevent.event.Event(), threading.Event(), []
        _leaders._POLL, block, ends = 0.01, _wait.block, []

        def counted(op, timeout=None):
            is_done = block(op, timeout)
            if timeout is not None and not is_done:
                ends.append(1)
                if len(ends) == 3:
                    waited.set()
            return is_done

        _wait.block = counted

        def work(term):
            led.append(term.is_held())
            stop.set()

        with election.campaign():
            candidate = gevent.spawn(election.lead_forever, work, stop)
            assert gevent.wait([waited, candidate], count=1, timeout=20) == [waited], candidate.exception
        candidate.get(timeout=20)
        assert led == [True]
        """,
        url,
        name,
    ).end(60)
