"""Tools for testing programs that use locks: a store without a server, with faults that the test injects.

>>> from tenure import testing
>>> locks, control = testing.store()
>>> guard = locks.mutex("nightly").lock()
>>> control.advance(60)  # a minute passes immediately; the lease is renewed meanwhile
>>> guard.is_held()
True
>>> control.lose("nightly")
True
>>> guard.lost.wait(timeout=5)
True
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Optional

from . import _native
from ._errors import UnsupportedError
from ._locks import Locks, of_testing
from ._uses import aware
from ._wait import Seconds, run, seconds, wait

__all__ = ["Control", "Fault", "store"]


class Fault:
    """A hold of another process, or an outage. `end` ends it, as does the `with` block."""

    def __init__(self, native: _native.Elsewhere) -> None:
        self._native = native

    def end(self) -> None:
        """Ends the hold or the outage."""
        self._native.end()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.end()


class Control:
    """Controls the store that `store` returned with it."""

    def __init__(self, native: _native.Control) -> None:
        self._native = native

    def lose(self, name: str) -> bool:
        """Ends all holds of this name, as if the server had lost them. Returns whether there were any."""
        return self._native.lose(name)

    def hold_elsewhere(self, name: str) -> Fault:
        """Holds a mutex as another process would.

        >>> locks, control = store()
        >>> with control.hold_elsewhere("nightly"):
        ...     locks.mutex("nightly").try_lock() is None
        True
        """
        return Fault(self._native.hold_elsewhere(name))

    def elsewhere(self) -> Locks:
        """The locks of another process on the same store, which faults do not affect."""
        return of_testing(self._native.elsewhere())

    def outage(self) -> Fault:
        """Makes the store unreachable: requests fail immediately, and messages are lost."""
        return Fault(self._native.outage())

    def slow(self, delay: Seconds) -> None:
        """Delays answers from now on. Zero turns this off."""
        self._native.slow(seconds(delay))

    def advance(self, time: Seconds) -> None:
        """Lets time pass immediately. Leases are renewed meanwhile, and expire when they are due."""
        run(self._native.advance(seconds(time)))

    async def aadvance(self, time: Seconds) -> None:
        """Like `advance`, in an event loop."""
        await wait(self._native.advance(seconds(time)))

    def suspend(self, time: Seconds) -> None:
        """Moves the clock forward in one step, as after a suspend of the machine: nothing is renewed meanwhile."""
        self._native.suspend(seconds(time))

    def requests(self) -> list[str]:
        """The program's requests to the store, such as `acquire nightly: held`."""
        return self._native.requests()

    def forget_requests(self) -> None:
        """Clears the record of requests."""
        self._native.forget_requests()


def store(at: Optional[datetime] = None) -> tuple[Locks, Control]:
    """A store in memory for one test, and its control. `at` is where its wall clock begins, which decides the window of
    a job.

    >>> from datetime import datetime, timedelta, timezone
    >>> import tenure
    >>> locks, control = store(at=datetime(2030, 5, 1, 1, tzinfo=timezone.utc))
    >>> nightly = locks.once_per("nightly", tenure.daily(at=2 * 3600), open_for=3600)
    >>> nightly.run(lambda turn: "backed up").ran
    False
    >>> control.advance(timedelta(hours=1))
    >>> nightly.run(lambda turn: "backed up").value
    'backed up'
    """
    if not hasattr(_native, "testing_store"):
        raise UnsupportedError("this build is without the feature testing")
    locks, control = _native.testing_store(None if at is None else aware("at", at).timestamp())
    return of_testing(locks), Control(control)
