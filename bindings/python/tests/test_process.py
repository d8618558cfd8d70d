"""Signals, forks, threads and interpreter shutdown. Each case is a separate program."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tenure
from conftest import Program, Server, eventually

Start = Callable[..., Program]

WAITER = """
    import sys, threading, time, tenure
    locks = tenure.connect(sys.argv[1], op_timeout=20)
    kind, name = sys.argv[2:4]
    lock = locks.fair_mutex(name) if kind == "fair" else locks.mutex(name)
    print("ready")
    for _ in range(5):
        try:
            lock.lock()
        except KeyboardInterrupt:
            print(time.monotonic())
    locks.flush()
    print(locks.metrics().total.waiting)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["mutex", "fair"])
def test_ctrl_c_ends_a_wait_at_once(locks: tenure.Locks, url: str, name: str, program: Start, kind: str) -> None:
    guard = (locks.fair_mutex(name) if kind == "fair" else locks.mutex(name)).lock()
    waiter = program(WAITER, url, kind, name)
    assert waiter.line() == "ready"
    delays = []
    for _ in range(5):
        if kind == "fair":  # its queue is in the store
            eventually(lambda: len(locks.inspect(name).waiters) == 1)  # type: ignore[union-attr]
        else:
            time.sleep(0.1)
        sent = time.monotonic()
        waiter.process.send_signal(signal.SIGINT)
        delays.append(float(waiter.line()) - sent)
    assert statistics.median(delays) < 0.1, delays
    assert waiter.line() == "0"
    status = locks.inspect(name)
    assert status is not None and not status.waiters
    guard.release()
    again = locks.mutex(name).try_lock() if kind == "mutex" else locks.fair_mutex(name).try_lock()
    assert again is not None, "the waiter that was interrupted got the lock"
    again.release()
    waiter.go()
    waiter.end()


def test_a_signal_handler_runs_during_a_wait(locks: tenure.Locks, url: str, name: str, program: Start) -> None:
    guard = locks.mutex(name).lock()
    waiter = program(
        """
        import signal, sys, tenure
        locks = tenure.connect(sys.argv[1], op_timeout=20)
        signal.signal(signal.SIGUSR1, lambda *_: print("handled", locks.mutex("other").try_lock() is not None))
        print("ready")
        print(locks.mutex(sys.argv[2]).lock().is_held())
        """,
        url,
        name,
    )
    assert waiter.line() == "ready"
    waiter.process.send_signal(signal.SIGUSR1)
    assert waiter.line() == "handled True", "a handler may use locks itself"
    guard.release()
    assert waiter.line() == "True"
    waiter.end()


def test_a_signal_handler_that_raises_leaves_nothing_held(url: str, name: str, program: Start) -> None:
    interrupted = program(
        """
        import random, signal, sys, tenure

        class Interrupt(Exception):
            pass

        def interrupt(*_):
            raise Interrupt

        locks, name, kept = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2], []
        signal.signal(signal.SIGALRM, interrupt)
        shared = locks.mutex(name)
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.0012))
                while True:
                    with shared if number % 2 else locks.mutex(name):
                        pass
            except Interrupt as error:
                kept.append(error)  # its traceback keeps the frames
            guard = shared.try_lock(timeout=10)
            assert guard is not None, (number, locks.inspect(name))
            guard.release()
        """,
        url,
        name,
    )
    interrupted.end(60)


def test_a_loss_interrupts_the_main_thread(url: str, name: str, program: Start) -> None:
    program(
        """
        import signal, sys, threading, time, tenure
        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]
        before = signal.getsignal(signal.SIGINT)
        for work in (lambda: time.sleep(600), lambda: [None for _ in iter(int, 1)], lambda: sys.stdin.read()):
            started = time.monotonic()
            try:
                with locks.mutex(name) as guard, guard.interrupt_on_loss():
                    locks.force_release(name)
                    work()
            except tenure.LostError as lost:
                assert lost.lock == name and time.monotonic() - started < 60
            else:
                raise AssertionError("the work ended")
            assert signal.getsignal(signal.SIGINT) is before
        for number in range(50):  # the loss and the end of the block at about the same time
            try:
                with locks.mutex(name) as guard, guard.interrupt_on_loss():
                    thread = threading.Thread(target=locks.force_release, args=(name,))
                    thread.start()
                    time.sleep(number / 10_000)
            except tenure.LostError:
                pass
            thread.join()
        with locks.mutex(name) as guard:
            with guard.interrupt_on_loss():
                guard.raise_if_lost()
            try:  # Ctrl-C stays what it is
                with guard.interrupt_on_loss():
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("Ctrl-C is lost")
            failed = []

            def elsewhere():
                try:
                    guard.interrupt_on_loss().__enter__()
                except tenure.Error as error:
                    failed.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert "main thread" in str(failed[0])
            locks.force_release(name)
            guard.lost.wait(20)
            try:
                guard.raise_if_lost()
            except tenure.LostError as lost:
                assert lost is not None
            else:
                raise AssertionError("it is lost")
            try:
                guard.release()
            except tenure.LostError:
                pass
        """,
        url,
        name,
    ).end(100)


def test_two_hundred_forks_under_load(url: str, name: str, program: Start) -> None:
    program(
        """
        import os, signal, sys, threading, time, tenure

        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]
        held = locks.mutex(name, on_lost=print).lock()  # a callback: its thread does not survive a fork either
        fence = held.fence
        waiting = threading.Thread(target=lambda: locks.mutex(name).try_lock(timeout=600), daemon=True)
        waiting.start()
        # A place in a queue behind another client, with a subscription.
        theirs = tenure.connect(sys.argv[1], op_timeout=20).fair_mutex(name + "-theirs").lock()
        queued = locks.fair_mutex(name + "-theirs")
        got = []
        queue = threading.Thread(target=lambda: got.append(queued.lock()), daemon=True)
        queue.start()
        while not locks.inspect(name + "-theirs").waiters:
            time.sleep(0.002)
        over = threading.Event()

        def load(number):
            while not over.is_set():
                with locks.mutex(f"{name}-load-{number}"):
                    pass

        loads = [threading.Thread(target=load, args=(number,)) for number in range(3)]
        for thread in loads:
            thread.start()

        def child(number):
            try:
                held.verify()
                return "verified"
            except tenure.ForkedError:
                pass
            if "parent" not in repr(held):
                return repr(held)
            if locks.mutex(name).try_lock() is not None:
                return "got the lock of its parent"
            mine = locks.mutex(f"{name}-child")
            with mine as guard, locks.fair_mutex(f"{name}-{number}"):
                guard.verify()
                if mine.try_lock() is not None:
                    return "got its lock twice"
            return None

        for number in range(200):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                wrong = child(number)
                if wrong:
                    os.write(2, f"Traceback: {wrong}".encode())
                os._exit(1 if wrong else 0)
            status = os.waitpid(pid, 0)[1]
            assert status == 0, (number, status)
        over.set()
        for thread in loads:
            thread.join()
        held.verify()
        assert held.is_held() and held.fence == fence and waiting.is_alive()
        held.release()
        waiting.join(20)
        assert not waiting.is_alive() and queue.is_alive() and not got
        theirs.release()
        queue.join(20)
        assert got[0].is_held()
        """,
        url,
        name,
    ).end(80)


def test_a_guard_carried_over_a_fork_raises(url: str, name: str, program: Start) -> None:
    parent = program(
        """
        import os, sys, tenure
        locks = tenure.connect(sys.argv[1], op_timeout=20)
        raised = []
        pid = None
        try:
            with locks.mutex(sys.argv[2]) as guard:
                pid = os.fork()
                if pid == 0:
                    for use in (guard.is_held, guard.release, guard.detach, lambda: guard.lost):
                        try:
                            use()
                        except tenure.ForkedError:
                            raised.append(use)
                else:
                    assert os.waitpid(pid, 0)[1] == 0
                    guard.verify()
        except tenure.ForkedError:
            os._exit(0 if len(raised) == 4 else 1)
        print("released", locks.mutex(sys.argv[2]).try_lock() is not None)
        """,
        url,
        name,
    )
    assert parent.end() == "released True"


def test_children_of_multiprocessing_use_the_locks(url: str, name: str, program: Start) -> None:
    parent = program(
        """
        import multiprocessing, sys, tenure

        def work(mutex, count):
            for _ in range(5):
                with mutex:
                    count.value += 1

        if __name__ == "__main__":
            mutex = tenure.connect(sys.argv[1], op_timeout=20).mutex(sys.argv[2])
            context = multiprocessing.get_context("fork")
            count = context.Value("i", 0, lock=False)
            with mutex:
                children = [context.Process(target=work, args=(mutex, count)) for _ in range(4)]
                for child in children:
                    child.start()
            for child in children:
                child.join(60)
            print(count.value, [child.exitcode for child in children])
        """,
        url,
        name,
    )
    assert parent.end(70) == "20 [0, 0, 0, 0]"


def test_a_worker_of_uwsgi_has_a_connection_of_its_own(url: str, name: str, program: Start) -> None:
    """It forks without the hooks of Python, and calls one of its own."""
    program(
        """
        import ctypes, os, sys, types
        sys.modules["uwsgi"] = uwsgi = types.ModuleType("uwsgi")
        called = []
        uwsgi.post_fork_hook = lambda: called.append(os.getpid())
        import tenure
        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]
        mutex = locks.mutex(name)
        with mutex as guard:
            if (child := ctypes.PyDLL(None).fork()) == 0:
                uwsgi.post_fork_hook()
                with locks.mutex(name + "child"):
                    os._exit(0 if mutex.try_lock() is None and called == [os.getpid()] else 1)
            assert os.waitpid(child, 0)[1] == 0
            guard.verify()
        """,
        url,
        name,
    ).end(60)


@pytest.mark.parametrize("path", ["{}/locks", "{}/link", "locks", "//{}/locks"])
def test_a_child_does_not_keep_a_file_lock_of_its_parent(tmp_path: Path, path: str, program: Start) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "locks")
    parent = program(
        """
        import os, sys, time, tenure
        os.chdir(sys.argv[2])
        locks = tenure.connect(sys.argv[1], op_timeout=20)
        guard = locks.mutex("x", ttl=600).lock()
        os.chdir("/")
        child = os.fork()
        if child == 0:
            os.close(0)
            time.sleep(600)
        print(child)
        time.sleep(600)
        """,
        f"file:{path.format(tmp_path)}",
        str(tmp_path),
    )
    child = int(parent.line())
    locks = tenure.connect(f"file:{tmp_path}/locks")
    assert locks.mutex("x").try_lock() is None
    parent.process.kill()
    parent.process.wait()
    try:
        assert locks.mutex("x").try_lock(timeout=20) is not None
        os.kill(child, 0)  # it is still alive
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_keeps_the_files_of_the_program(tmp_path: Path, program: Start) -> None:
    parent = program(
        """
        import os, sys, tenure
        directory = sys.argv[1]
        locks = tenure.connect(f"file:{directory}", op_timeout=20)
        guard = locks.mutex("x").lock()
        work = locks.mutex("y", inherit_liveness=True).lock()
        with open(f"{directory}/program.log", "w") as log:
            for _ in range(2):  # a child of a child, too
                if (child := os.fork()) != 0:
                    assert os.waitpid(child, 0)[1] == 0
                    break
                log.write("a child was here")
                log.flush()
                try:
                    guard.verify()
                except tenure.ForkedError:
                    assert locks.mutex("x").try_lock() is None
                own = locks.mutex(f"own{os.getpid()}").lock()
            os._exit(0)
        """,
        str(tmp_path),
    )
    parent.end()
    assert (tmp_path / "program.log").read_text() == "a child was here" * 2


def test_a_child_has_a_memory_store_of_its_own(program: Start) -> None:
    parent = program(
        """
        import os, tenure
        for url in ("memory:", "memory:shared"):
            mutex = tenure.connect(url).mutex("x")
            guard = mutex.lock()
            child = os.fork()
            if child == 0:
                os._exit(0 if mutex.try_lock() is not None else 1)
            print(os.waitpid(child, 0)[1])
        """
    )
    assert parent.end() == "0\n0"


def test_the_end_of_the_interpreter_releases_guards(
    locks: tenure.Locks, url: str, name: str, program: Start
) -> None:
    started = time.monotonic()
    ending = program(
        """
        import asyncio, logging, sys, threading, tenure
        logging.basicConfig(level=logging.DEBUG)  # events call into the interpreter from other threads
        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]

        def turns():
            while True:
                with locks.mutex(name + "e"):
                    pass

        for _ in range(2):
            threading.Thread(target=turns, daemon=True).start()
        forever = [locks.mutex(name + "a", on_lost=print).lock()]
        forever.append(forever)  # a cycle that nothing collects
        sys.forever = forever
        busy = locks.mutex(name + "b").lock()
        waiting = threading.Thread(target=locks.fair_mutex(name + "c").lock, daemon=True)
        held = locks.fair_mutex(name + "c").lock()
        waiting.start()
        threading.Thread(target=locks.mutex(name + "b").lock, daemon=True).start()
        while locks.inspect(name + 'c') is None or not locks.inspect(name + 'c').waiters:
            pass
        loop = asyncio.new_event_loop()
        loop.run_until_complete(locks.mutex(name + "d").alock())
        task = loop.create_task(locks.mutex(name + "d").alock())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()  # with a task that waits
        """,
        url,
        name,
    )
    _, errors = ending.process.communicate(timeout=60)
    took = time.monotonic() - started
    assert ending.process.returncode == 0 and "Fatal" not in errors, errors[-4000:]
    for part in "abcde":
        assert locks.inspect(name + part) is None, part
    assert took < 15, took


def test_the_end_of_the_interpreter_does_not_wait_for_a_dead_server(tmp_path: Path, program: Start) -> None:
    server = Server(tmp_path)
    holder = program(
        "import sys, tenure; guard = tenure.connect(sys.argv[1]).mutex('x').lock(); print('held'); sys.stdin.readline()",
        server.url,
    )
    assert holder.line() == "held"
    server.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    holder.go()
    try:
        holder.end(30)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()
    assert time.monotonic() - started < 10


def test_a_subinterpreter_is_refused(program: Start) -> None:
    refused = program(
        """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        id = interpreters.create()
        try:
            failed = interpreters.run_string(id, "import tenure")
        except Exception as error:
            failed = error
        print(failed)
        """
    )
    assert "subinterpreter" in refused.end()


def test_ten_thousand_dropped_guards_leave_nothing(locks: tenure.Locks, url: str, name: str, program: Start) -> None:
    holder = program(
        """
        import asyncio, gc, resource, sys, tenure

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        locks, name = tenure.connect(sys.argv[1], op_timeout=20), sys.argv[2]

        def drop(first):
            for number in range(first, first + 5_000):
                locks.mutex(f"{name}:{number}").lock()
                if number % 500 == 0:
                    locks.flush()  # what is not yet released takes memory, and that is no leak

        async def adrop(first):
            for number in range(first, first + 5_000):
                await locks.mutex(f"{name}:{number}").alock()
                if number % 500 == 0:
                    await locks.aflush()

        drop(0)
        asyncio.run(adrop(5_000))
        locks.flush()
        gc.collect()
        before = resident()
        drop(10_000)
        asyncio.run(adrop(15_000))
        locks.flush()
        gc.collect()
        print(resident() - before, locks.metrics().total.held)
        """,
        url,
        name,
    )
    grown, held = map(int, holder.end(80).split())
    assert held == 0 and grown < 4 << 20, grown
    assert not list(locks.list(name)), "all are released"
