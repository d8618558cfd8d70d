"""Runs calls of the library, on a blocked thread or in an event loop."""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _fork, _native
from ._errors import Error

# Imported on first use: asyncio alone takes longer to import than the rest of the package.
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

Seconds = Union[float, "timedelta"]
"""A time in seconds."""

_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Reactor] = weakref.WeakKeyDictionary()


def seconds(time: Seconds) -> float:
    return time if isinstance(time, (int, float)) else time.total_seconds()


def optional_seconds(time: Optional[Seconds]) -> Optional[float]:
    return None if time is None else seconds(time)


def running_loop() -> Optional[asyncio.AbstractEventLoop]:
    """The event loop of asyncio that runs on this thread."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def run(op: _native.Op) -> Any:
    """Blocks this thread, without the GIL, until the call is done. Ctrl-C cancels it."""
    op.run()
    return op.result()


def run_with(op: _native.Op, answer: Callable[[], tuple[Optional[bytes], float]]) -> Any:
    """Like `run`, for a call that asks for a value."""
    op.run()
    while op.is_asking():
        try:
            op.reply(answer())
        except Exception as error:
            op.fail(error)
        except BaseException:
            op.cancel()
            raise
        op.run()
    return op.result()


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


async def wait(op: _native.Op) -> Any:
    """Waits in an event loop. Cancelling the task cancels the call."""
    await _step(op)
    return op.result()


async def wait_with(op: _native.Op, answer: Callable[[], Awaitable[tuple[Optional[bytes], float]]]) -> Any:
    """Like `wait`, for a call that asks for a value."""
    await _step(op)
    while op.is_asking():
        try:
            op.reply(await answer())
        except Exception as error:
            op.fail(error)
        except BaseException:
            op.cancel()
            raise
        await _step(op)
    return op.result()


async def _step(op: _native.Op) -> None:
    loop = running_loop()
    if loop is None:
        return await _step_in_thread(op)
    reactor = reactor_of(loop)
    future = loop.create_future()
    id = op.start(reactor, future)
    if id is None:
        return None
    try:
        await future
    except BaseException:
        # Even if the call is done, so that what it acquired is released.
        op.cancel()
        reactor.forget(id)
        raise


async def _step_in_thread(op: _native.Op) -> None:
    trio: Any = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_run():
        raise Error("this needs a running event loop of asyncio or trio")
    # Waiters do not count against the limit on threads: a holder would need one to release its lock.
    limiter = trio.CapacityLimiter(float("inf"))
    try:
        await trio.to_thread.run_sync(op.run, abandon_on_cancel=True, limiter=limiter)
    except trio.Cancelled:
        op.cancel()
        raise


def current() -> object:
    """The running task, or else the id of the thread."""
    loop = running_loop()
    if loop is not None:
        return sys.modules["asyncio"].current_task(loop) or get_ident()
    trio: Any = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_task()
    return get_ident()


_fork.in_child(_reactors.clear)
