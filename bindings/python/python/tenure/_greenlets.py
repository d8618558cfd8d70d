"""Waits in greenlets of gevent: the hub runs other greenlets meanwhile. Imported only if gevent is."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Optional

import gevent
import gevent.monkey
from gevent._hub_local import get_hub_if_exists
from gevent.event import Event
from greenlet import getcurrent

from . import _fork, _native

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 1  # an event of the hub's loop


class _Done(Event):  # type: ignore[misc, unused-ignore]
    def set_result(self, _: None) -> None:
        self.set()


class Hub:
    """The calls of the greenlets of one thread."""

    def __init__(self, hub: Any) -> None:
        self._hub = weakref.ref(hub)
        self.reactor = _native.Reactor()
        # Only greenlets that wait keep the hub's loop alive.
        self._watcher = hub.loop.io(self.reactor.fileno(), _READ, ref=False)
        self._watcher.start(self.reactor.turn)
        self._waiting = 0

    def block(self, op: _native.Op, timeout: Optional[float]) -> bool:
        """Switches to other greenlets until the call is done (`True`) or the timeout."""
        if getcurrent() is self._hub():
            return op.run(timeout)  # a callback of the loop itself, which cannot switch
        done = _Done()
        id = op.start(self.reactor, done)
        if id is None:
            return True
        self._wait(1)
        is_done = False
        try:
            is_done = bool(done.wait(timeout))
            return is_done
        except BaseException:  # the greenlet is killed
            op.cancel()
            raise
        finally:
            self._wait(-1)
            if not is_done:
                self.reactor.forget(id)

    def _wait(self, more: int) -> None:
        self._waiting += more
        self._watcher.ref = self._waiting > 0

    def spawn(self, function: Callable[..., object], *args: object) -> None:
        """Calls a function in a greenlet of its own."""
        gevent.spawn(function, *args)

    def current(self) -> object:
        """The running greenlet."""
        return getcurrent()

    def close(self) -> None:
        self._watcher.stop()


_hubs: weakref.WeakKeyDictionary[Any, Hub] = weakref.WeakKeyDictionary()


def hub() -> Optional[Hub]:
    """The hub of this thread. With patched threads, each thread has one."""
    own = get_hub_if_exists()
    if own is None:
        if not gevent.monkey.is_module_patched("threading"):
            return None
        own = gevent.get_hub()
    known = _hubs.get(own)
    if known is None:
        known = _hubs[own] = Hub(own)
    return known


def _forget() -> None:
    for one in list(_hubs.values()):
        one.close()
    _hubs.clear()


_fork.in_child(_forget)
