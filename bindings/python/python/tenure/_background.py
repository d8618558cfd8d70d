"""A thread that waits for the loss of locks, for programs without an event loop."""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Optional

from . import _fork, _native

if TYPE_CHECKING:
    from collections.abc import Callable


class Sink:
    """Calls a function once a call of the library is done."""

    __slots__ = ("_done", "_op")

    def __init__(self, op: _native.Op, done: Callable[[object], None]) -> None:
        self._op = op
        self._done = done

    def start(self, reactor: _native.Reactor) -> Optional[int]:
        """Begins the call. Returns its id, or `None` if it is done already."""
        id = self._op.start(reactor, self)
        if id is None:
            self.set_result(None)
        return id

    def set_result(self, _: None) -> None:
        self._done(self._op.result())


class _Thread:
    def __init__(self) -> None:
        import threading

        self.reactor = _native.Reactor()
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="tenure-callbacks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.is_over:
            self.reactor.wait()
            self.reactor.turn()

    def stop(self) -> None:
        self.is_over = True
        self.reactor.wake()
        self._thread.join(1)


_thread: Optional[_Thread] = None
_starting = allocate_lock()


def watch(op: _native.Op, done: Callable[[object], None]) -> None:
    """Calls `done` with the result of the call, on the thread for callbacks."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = _Thread()
        reactor = _thread.reactor
    Sink(op, done).start(reactor)


def stop() -> None:
    """Ends the thread."""
    global _thread
    with _starting:
        thread, _thread = _thread, None
    if thread is not None:
        thread.stop()


def _forget() -> None:
    global _thread, _starting
    _thread, _starting = None, allocate_lock()


_fork.in_child(_forget)
