"""Distributed locks on the Redis you already run, with fencing tokens, wake-ups and a signal when a lock is lost.

>>> import tenure
>>> locks = tenure.connect("memory:")  # or redis://HOST, or file:DIR
>>> with locks.mutex("invoice:42", ttl=15) as guard:  # waits
...     print("charging")  # pass guard.fence to the resource
charging
>>> if guard := locks.mutex("noon").try_lock(timeout=2):  # None when busy
...     guard.release()

Each method that asks the store has an async variant, whose name begins with an `a`: `await lock.alock()`.
Locks and guards work in `with` and in `async with`.
"""

from __future__ import annotations

import atexit as _atexit
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _interpreter as _interpreter  # first: it may refuse
from . import _background, _native  # isort: skip
from ._errors import (
    BusyError,
    ClosedError,
    Error,
    ForkedError,
    InvalidError,
    LostError,
    MismatchError,
    OverdueError,
    RefusedError,
    ReleasedError,
    UnknownError,
    UnreachableError,
    UnsupportedError,
)
from ._guards import Guard, Loss, MultiGuard, RwGuard, Term, Turn
from ._locks import (
    FairMutex,
    Lock,
    Locks,
    Multi,
    Mutex,
    Options,
    ReentrantMutex,
    RwLock,
    RwSide,
    Semaphore,
    multi,
    opened,
    quorum_of,
)

if _TYPE_CHECKING:
    from typing import Optional as _Optional

    from typing_extensions import Unpack as _Unpack

    from ._caches import Absent, Cache, Fill, Uncached
    from ._locks import Login as _Login
    from ._uses import Election, Observer, OncePer, Schedule, cron, daily, monthly, weekly
    from ._values import (
        Change,
        ElectionStatus,
        ForcedRelease,
        Histogram,
        Holder,
        JobStatus,
        LastRun,
        Leader,
        LockMetrics,
        Metrics,
        PastRun,
        Run,
        Status,
        StopRequest,
    )

__version__ = _native.__version__

__all__ = [
    "Absent", "BusyError", "Cache", "Change", "ClosedError", "Election", "ElectionStatus", "Error", "FairMutex", "Fill",
    "ForcedRelease", "ForkedError", "Guard", "Histogram", "Holder", "InvalidError", "JobStatus", "LastRun", "Leader",
    "Lock", "LockMetrics", "Locks", "Loss", "LostError", "Metrics", "MismatchError", "Multi", "MultiGuard", "Mutex",
    "Observer", "OncePer", "Options", "OverdueError", "PastRun", "ReentrantMutex", "RefusedError", "ReleasedError",
    "Run", "RwGuard", "RwLock", "RwSide", "Schedule", "Semaphore", "Status", "StopRequest", "Term", "Turn", "Uncached",
    "UnknownError", "UnreachableError", "UnsupportedError", "aconnect", "connect", "cron", "daily", "monthly", "multi",
    "open_lazily", "quorum", "weekly",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Imports the modules of uses and values on first use."""
    if name in __all__:
        from importlib import import_module

        for module in ("._caches", "._uses", "._values"):
            found = getattr(import_module(module, __name__), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_lazily(url: str, *, credentials: _Optional[_Login] = None, **options: _Unpack[Options]) -> Locks:
    """Opens a store without I/O; the first use connects. For module level, and for programs that start before
    their store.

    >>> locks = open_lazily("redis://127.0.0.1:1")
    """
    return opened(url, options, credentials)


def connect(url: str, *, credentials: _Optional[_Login] = None, **options: _Unpack[Options]) -> Locks:
    """Opens a store and checks that it answers. `options` apply to all its locks: see `Options`.

    The URL is `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, `rediss://…` (TLS), `redis+unix:///SOCKET`,
    `redis-sentinel://…`, `redis-cluster://…`, `redis-quorum://…`, `file:DIR` (the processes of one machine), or
    `memory:` (this process). Builds with these features also have `postgres://…`, `mysql://…`, `etcd://…` and
    `zookeeper://…`.

    `credentials` is a function that returns the user, or `None`, and the password of a Redis server, each time it
    connects: for passwords that change. A connection waits 100 ms for it; a later answer is for the next one, within
    30 s. Such locks cannot be pickled.

    >>> connect("memory:", ttl=60, prefix="shop:").url
    'memory:'
    """
    locks = opened(url, options, credentials)
    locks.ping()
    return locks


async def aconnect(url: str, *, credentials: _Optional[_Login] = None, **options: _Unpack[Options]) -> Locks:
    """Like `connect`, in an event loop."""
    locks = opened(url, options, credentials)
    await locks.aping()
    return locks


def quorum(*members: Locks) -> Locks:
    """A majority of independent stores: Redlock with fencing tokens. It has mutexes only.

    >>> locks = quorum(connect("memory:a"), connect("memory:b"), connect("memory:c"))
    >>> with locks.mutex("orders:42") as guard:
    ...     guard.is_held()
    True
    """
    return quorum_of(list(members))


# How long interpreter shutdown may wait for releases. Unanswered ones are left to their leases.
_CLOSE = 2.0


def _close() -> None:
    _background.stop()
    _native.close(_CLOSE)


_atexit.register(_close)
