"""Runs calls of the library: on a blocked thread, in a greenlet, or in an event loop."""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _fork, _native
from ._errors import Error, InvalidError, UnsupportedError

# Imported on first use: asyncio alone takes longer to import than the rest of the package.
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from ._greenlets import Hub

Seconds = Union[float, "timedelta"]
"""A time in seconds."""

_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Reactor] = weakref.WeakKeyDictionary()
_in_trio: weakref.WeakKeyDictionary[Any, _native.Reactor] = weakref.WeakKeyDictionary()


def seconds(time: Seconds, what: str = "time") -> float:
    given: Any = time
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return given
    total_seconds: Any = getattr(given, "total_seconds", None)
    if total_seconds is None:
        raise InvalidError(f"{what}: got {given!r}, expected seconds or a timedelta")
    total: float = total_seconds()
    return total


def optional_seconds(time: Optional[Seconds]) -> Optional[float]:
    return None if time is None else seconds(time)


def running_loop() -> Optional[asyncio.AbstractEventLoop]:
    """The event loop of asyncio that runs on this thread."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def trio_here() -> Any:
    """The module trio, if its event loop runs on this thread."""
    trio: Any = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


def hub_here() -> Optional[Hub]:
    """The event loop of gevent, if this thread has one. To block the thread would stop all its greenlets."""
    if "gevent" in sys.modules:
        from . import _greenlets

        return _greenlets.hub()
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.already_patched:
        raise UnsupportedError("tenure does not work with the patches of eventlet: use gevent, threads or asyncio")
    return None


class Sink:
    """Calls a function once a call of the library is done."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[], object]) -> None:
        self._done = done

    def set_result(self, _: None) -> None:
        self._done()


def block(op: _native.Op, timeout: Optional[float] = None) -> bool:
    """Blocks this thread without the GIL, or this greenlet, until the call is done (`True`) or the timeout."""
    hub = hub_here()
    return op.run(timeout) if hub is None else hub.block(op, timeout)


def run(op: _native.Op, answer: Optional[Callable[[], Any]] = None) -> Any:
    """Blocks until the call is done. Ctrl-C cancels it. `answer` computes the values for which it asks."""
    try:
        block(op)
        while answer is not None and op.is_asking():
            try:
                op.reply(answer())
            except Exception as error:
                op.fail(error)
            block(op)
        return op.result()
    except BaseException:
        op.cancel()  # at once, because a traceback may keep the call, with what it acquired
        raise


def spend(call: Callable[..., _native.Op], *args: Any) -> Any:
    """Like `run`, for a call that consumes the guard of a hold. A signal handler that raises before it finds the
    guard in the hold; one that raises after it cancels the call, which releases the lock."""
    op: Optional[_native.Op] = None
    try:
        op = call(*args)
        block(op)
        return op.result()
    except BaseException:
        if op is not None:
            op.cancel()
        raise


def granted(op: _native.Op, make: Callable[[_native.Hold], Any]) -> Any:
    """Like `run`, for a guard, which `make` makes of the hold; `None` for a busy lock."""
    return _native.granted(op, block, make)


def reactor_of(loop: asyncio.AbstractEventLoop) -> _native.Reactor:
    """The reactor of an event loop."""
    reactor = _reactors.get(loop)
    if reactor is None:
        for other in list(_reactors):
            if other.is_closed():
                del _reactors[other]
        reactor = _reactors[loop] = _native.Reactor()
        loop.add_reader(reactor.fileno(), reactor.turn)
    return reactor


def reactor_in_trio(trio: Any) -> _native.Reactor:
    """The reactor of a run of trio."""
    run = trio.lowlevel.current_trio_token()
    reactor = _in_trio.get(run)
    if reactor is None:
        reactor = _in_trio[run] = _native.Reactor()
        trio.lowlevel.spawn_system_task(_turn_in_trio, trio, reactor)
    return reactor


async def _turn_in_trio(trio: Any, reactor: _native.Reactor) -> None:
    while True:
        await trio.lowlevel.wait_readable(reactor.fileno())
        reactor.turn()


async def wait(op: _native.Op, answer: Optional[Callable[[], Awaitable[Any]]] = None) -> Any:
    """Like `run`, in an event loop. Cancelling the task cancels the call."""
    loop = running_loop()
    while True:
        if loop is None:
            await _step_in_trio(op)
        else:
            future = loop.create_future()
            reactor = reactor_of(loop)
            id = op.start(reactor, future)
            if id is not None:
                try:
                    await future
                except BaseException:
                    # Even if the call is done, so that what it acquired is released.
                    op.cancel()
                    reactor.forget(id)
                    raise
        if answer is None or not op.is_asking():
            return op.result()
        try:
            op.reply(await answer())
        except Exception as error:
            op.fail(error)
        except BaseException:
            op.cancel()
            raise


async def _step_in_trio(op: _native.Op) -> None:
    trio = trio_here()
    if trio is None:
        raise Error("this needs a running event loop of asyncio or trio")
    event = trio.Event()
    reactor = reactor_in_trio(trio)
    id = op.start(reactor, Sink(event.set))
    if id is not None:
        try:
            await event.wait()
        except BaseException:
            op.cancel()
            reactor.forget(id)
            raise


def current() -> object:
    """The running task or greenlet, or else the id of the thread."""
    loop = running_loop()
    if loop is not None:
        return sys.modules["asyncio"].current_task(loop) or get_ident()
    trio = trio_here()
    if trio is not None:
        return trio.lowlevel.current_task()
    hub = hub_here()
    return get_ident() if hub is None else hub.current()


_fork.in_child(_reactors.clear)
_fork.in_child(_in_trio.clear)
