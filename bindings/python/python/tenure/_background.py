"""Waits for the loss of locks: in an event loop, or else on a thread for callbacks."""

from __future__ import annotations

import _thread
import sys
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, Optional

from . import _fork, _native, _wait

if TYPE_CHECKING:
    from collections.abc import Callable


def _original(name: str) -> Any:
    """A function of `_thread` that gevent replaces by one for greenlets."""
    gevent: Any = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if gevent is None else gevent.get_original("_thread", name)


class _Thread:
    def __init__(self) -> None:
        self.reactor = _native.Reactor()
        self.is_over = False
        self._running = _original("allocate_lock")()
        self._running.acquire()
        _original("start_new_thread")(self._run, ())

    def _run(self) -> None:
        while not self.is_over:
            self.reactor.wait()
            self.reactor.turn()
        self._running.release()

    def stop(self) -> None:
        self.is_over = True
        self.reactor.wake()
        self._running.acquire(timeout=1)


class Watch:
    """Calls a function with the result of a call of the library."""

    def __init__(self, op: _native.Op, done: Callable[[Any], object]) -> None:
        self._op, self._done = op, done
        hub, trio, loop = None, None, _wait.running_loop()
        if loop is None:
            trio = _wait.trio_here()
        if loop is None and trio is None:
            hub = _wait.hub_here()
        self._hub = hub
        self._reactor = (
            hub.reactor if hub is not None
            else _wait.reactor_of(loop) if loop is not None
            else _wait.reactor_in_trio(trio) if trio is not None
            else _reactor()
        )  # fmt: skip
        self._id = op.start(self._reactor, self)
        if self._id is None:
            self.set_result(None)

    def set_result(self, _: None) -> None:
        end = self._op.result()
        if self._hub is None:
            self._done(end)
        else:  # the function may block, and the hub may not
            self._hub.spawn(self._done, end)

    def cancel(self) -> None:
        """Ends the call."""
        if self._id is not None:
            self._op.cancel()
            self._reactor.forget(self._id)


_callbacks: Optional[_Thread] = None
_starting = allocate_lock()


def _reactor() -> _native.Reactor:
    """The reactor of the thread for callbacks."""
    global _callbacks
    with _starting:
        if _callbacks is None:
            _callbacks = _Thread()
        return _callbacks.reactor


def stop() -> None:
    """Ends the thread."""
    global _callbacks
    with _starting:
        thread, _callbacks = _callbacks, None
    if thread is not None:
        thread.stop()


def _forget() -> None:
    global _callbacks, _starting
    _callbacks, _starting = None, allocate_lock()


_fork.in_child(_forget)
