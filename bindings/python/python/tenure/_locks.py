"""Stores and their locks."""

from __future__ import annotations

import os
import sys
import weakref
from _thread import _local
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Optional, TypedDict, TypeVar, Union, cast

from . import _fork, _log, _native, _wait
from ._errors import BusyError, ForkedError, InvalidError, LostError, UnsupportedError
from ._guards import Guard, MultiGuard, RwGuard, check_callback
from ._wait import Seconds, block, granted, optional_seconds, run, seconds, wait

if TYPE_CHECKING:
    import builtins
    import threading
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from types import TracebackType

    from typing_extensions import Unpack

    from ._caches import Cache, Codec, Fill
    from ._decorators import Caching
    from ._jobs import Job
    from ._uses import Election, OncePer, Period, Zone
    from ._values import ElectionStatus, ForcedRelease, JobStatus, Metrics, Status, StopRequest
    from .compat.redis import Lock as RedisLock

    Login = Callable[[], tuple[Optional[str], str]]

F = TypeVar("F", bound="Callable[..., Any]")
G = TypeVar("G", bound=Guard)


class Options(TypedDict, total=False):
    """How locks are held. `Locks.configured` changes them for all locks, and each lock takes them too."""

    ttl: Seconds
    """The lease: how long the lock outlives a holder that is gone. Default: 15 s."""
    renew: bool
    """Whether the lease is renewed while the guard lives. Default: yes, at a third of the lease."""
    max_hold: Seconds
    """Maximum time one guard may hold the lock, however often it is renewed. Default: no limit."""
    grace: Seconds
    """How long before another client can get the lock its loss is reported. At most a third of the lease."""
    inherit_liveness: bool
    """Binds the hold to child processes too, on `file:` stores."""
    op_timeout: Seconds
    """Timeout of one request. Default: 1 s."""
    patience: Seconds
    """How long a wait keeps retrying while the store does not answer at all. Default: 60 s."""
    label: str
    """Text shown to people beside the holder's user, host and process."""
    prefix: str
    """Prepended to each name to form the store's key."""
    unfenced: bool
    """Allows a mutex without a fencing token on a server that forbids scripts."""
    group_by: str
    """A character: metrics are grouped by the part of a lock's name before it."""


_TIMES = ("ttl", "max_hold", "grace", "op_timeout", "patience")


# Words of other packages.
_HABITS = {
    "auto_renewal": "renew", "blocking_timeout": "timeout", "ex": "ttl", "expire": "ttl", "expires": "ttl",
    "expiry": "ttl", "lease": "ttl", "lease_time": "ttl", "px": "ttl", "wait": "timeout", "wait_time": "timeout",
}  # fmt: skip


def _unknown(name: str, known: list[str], habits: dict[str, str]) -> TypeError:
    from difflib import get_close_matches

    meant = habits.get(name) or next(iter(get_close_matches(name, known, 1)), None)
    hint = f"use {meant!r}" if meant else f"expected one of {', '.join(known)}"
    return TypeError(f"unknown option {name!r}: {hint}")


def _native_options(options: Options) -> dict[str, Any]:
    for name in options:
        if name not in Options.__annotations__:
            raise _unknown(name, [*Options.__annotations__, "timeout", "on_lost"], _HABITS)
    return {key: seconds(cast(Seconds, value), key) if key in _TIMES else value for key, value in options.items()}


def _stop_request(values: Any) -> Optional[StopRequest]:
    from ._values import StopRequest

    return StopRequest.of(values)


def _forced(values: Any) -> ForcedRelease:
    from ._values import ForcedRelease

    return ForcedRelease.of(values)


def _jobs(values: Any) -> list[JobStatus]:
    from ._values import JobStatus

    return [JobStatus.of(job) for job in values]


def _elections(values: Any) -> list[ElectionStatus]:
    from ._values import ElectionStatus

    return [ElectionStatus.of(election) for election in values]


def _status(values: Any) -> Optional[Status]:
    from ._values import Status

    return Status.of(values)


class _Store:
    """An open store. A child of a fork opens it again on its first use."""

    def __init__(self, url: str, opened: Callable[[], _native.Locks], bound_by: Optional[str] = None) -> None:
        self.url = url
        self.open = opened
        self.bound_by = bound_by
        """What keeps another process from opening it by its URL."""
        self._native = opened()
        self._generation = _fork.generation

    def native(self) -> _native.Locks:
        if self._generation != _fork.generation:
            self._native = self.open()
            self._generation = _fork.generation
        return self._native


def open_url(url: str, credentials: Optional[Login] = None) -> _native.Locks:
    if credentials is not None:
        if not hasattr(_native.Locks, "open_with_credentials"):
            raise UnsupportedError("this build is without the feature redis, whose stores have credentials")
        return _native.Locks.open_with_credentials(url, credentials)
    # A child has a copy of its parent's memory, with the parent's locks in it.
    if url.startswith("memory:") and url != "memory:" and _fork.generation:
        url = f"{url} of process {os.getpid()}"
    return _native.Locks.open(url)


class Locks:
    """The locks of a store: see `connect`.

    Create one for each store when the program starts. Threads, tasks and event loops share it. After a fork,
    the child opens a connection of its own on the first use.
    """

    def __init__(self, store: _Store, options: Options) -> None:
        self._store = store
        self._options: Options = options
        self._handle: Optional[_native.Locks] = None
        self._generation = -1
        self._jobs: list[Job] = []
        self._opened()

    def _opened(self) -> _native.Locks:
        if self._handle is None or self._generation != _fork.generation:
            native = self._store.native()
            self._handle = native.configured(**_native_options(self._options)) if self._options else native
            self._generation = _fork.generation
        return self._handle

    def configured(self, **options: Unpack[Options]) -> Locks:
        """The same store with changed options.

        >>> import tenure
        >>> locks = tenure.connect("memory:").configured(prefix="shop:", ttl=60)
        >>> locks.ttl
        60.0
        """
        return Locks(self._store, {**self._options, **options})

    @property
    def url(self) -> str:
        """The URL of the store, without its credentials."""
        return self._opened().url

    @property
    def ttl(self) -> float:
        """The lease in seconds."""
        return self._opened().ttl

    def ping(self) -> None:
        """Checks that the store answers."""
        run(self._opened().ping())

    async def aping(self) -> None:
        """Like `ping`, in an event loop."""
        await wait(self._opened().ping())

    def flush(self) -> None:
        """Waits for background releases, for at most `op_timeout`."""
        run(self._opened().flush())

    async def aflush(self) -> None:
        """Like `flush`, in an event loop."""
        await wait(self._opened().flush())

    def mutex(
        self,
        name: str,
        *,
        timeout: Optional[Seconds] = None,
        on_lost: Optional[Callable[[LostError], object]] = None,
        **options: Unpack[Options],
    ) -> Mutex:
        """A lock with one holder at a time.

        `timeout` is for `with`, which then raises `BusyError`. `on_lost` is called with the reason if the lock
        is lost.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.mutex("invoice:42", ttl=15) as guard:
        ...     locks.mutex("invoice:42").try_lock() is None
        True
        """
        return Mutex(self, name, timeout, on_lost, options)

    def lock(
        self,
        name: str,
        timeout: Optional[Seconds] = None,
        sleep: float = 0.1,
        *,
        blocking: bool = True,
        blocking_timeout: Optional[Seconds] = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        **others: NoReturn,
    ) -> RedisLock:
        """A mutex with the arguments and methods of redis-py's `Lock`: `acquire`, `release`, `locked`, `owned`,
        `extend` and `reacquire`. `sleep` is not used, because a release wakes a waiter. With a `timeout`, it stays taken
        until its release or the end of its lease, even if nothing refers to it any more. See `tenure.compat.redis`.

        >>> import tenure
        >>> lock = tenure.connect("memory:").lock("report", timeout=10)
        >>> if lock.acquire(blocking=False):
        ...     lock.release()
        """
        from .compat.redis import Lock as RedisLock

        for other in others:
            known = ["timeout", "sleep", "blocking", "blocking_timeout", "thread_local", "raise_on_release_error"]
            raise _unknown(other, known, {"ttl": "timeout", "expire": "timeout", "wait": "blocking_timeout"})
        return RedisLock(
            self, name, timeout, sleep, blocking=blocking, blocking_timeout=blocking_timeout, thread_local=thread_local,
            raise_on_release_error=raise_on_release_error,
        )  # fmt: skip

    def fair_mutex(
        self,
        name: str,
        *,
        timeout: Optional[Seconds] = None,
        on_lost: Optional[Callable[[LostError], object]] = None,
        **options: Unpack[Options],
    ) -> FairMutex:
        """A lock with one holder at a time, first come, first served. Arguments as for `mutex`."""
        return FairMutex(self, name, timeout, on_lost, options)

    def reentrant_mutex(
        self,
        name: str,
        *,
        owner: Optional[str] = None,
        timeout: Optional[Seconds] = None,
        on_lost: Optional[Callable[[LostError], object]] = None,
        **options: Unpack[Options],
    ) -> ReentrantMutex:
        """A lock with one owner at a time, who may hold it several times. The owner is the task or greenlet that
        calls a method, or else the thread, with this label, unless `owner` names another. Other arguments as for
        `mutex`.

        >>> import tenure
        >>> tree = tenure.connect("memory:").reentrant_mutex("tree")
        >>> with tree, tree:
        ...     tree.hold_count()
        2
        """
        return ReentrantMutex(self, name, timeout, on_lost, options, owner)

    def rwlock(
        self,
        name: str,
        *,
        timeout: Optional[Seconds] = None,
        on_lost: Optional[Callable[[LostError], object]] = None,
        **options: Unpack[Options],
    ) -> RwLock:
        """A lock with many readers or one writer. Arguments as for `mutex`.

        >>> import tenure
        >>> config = tenure.connect("memory:").rwlock("config")
        >>> with config.read(), config.read():
        ...     config.write().try_lock() is None
        True
        """
        return RwLock(self, name, timeout, on_lost, options)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: Optional[Seconds] = None,
        on_lost: Optional[Callable[[LostError], object]] = None,
        **options: Unpack[Options],
    ) -> Semaphore:
        """A lock with this number of permits, on which all users of the name must agree. Other arguments as for
        `mutex`.

        >>> import tenure
        >>> render = tenure.connect("memory:").semaphore("render", 2)
        >>> with render, render:
        ...     render.try_lock() is None
        True
        """
        return Semaphore(self, name, timeout, on_lost, options, permits, 1)

    def multi(self, *names: str, timeout: Optional[Seconds] = None) -> Multi:
        """Several mutexes at once, all or none. For other kinds and stores there is `tenure.multi`.

        >>> import tenure
        >>> with tenure.connect("memory:").multi("account:7", "account:3") as guard:
        ...     seven, three = guard.fences
        """
        return Multi([self.mutex(name) for name in names], timeout)

    def locked(
        self,
        name: str,
        *,
        kind: str = "mutex",
        on_busy: str = "wait",
        timeout: Optional[Seconds] = None,
        guard: Optional[str] = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """A decorator that runs a function, sync or async, under a lock.

        `name` may contain arguments of the function in braces. `on_busy` is `wait`, `skip` (the function
        returns `None`) or `raise` (a `BusyError`); `skip` and `raise` wait for `timeout`. `guard` names an
        argument of the function that gets the guard, and that callers do not see. If the lock is lost, an async
        function is cancelled. A generator holds the lock from its first value until it ends, is closed or is
        collected.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> @locks.locked("report:{day}", on_busy="skip")
        ... def report(day):
        ...     return f"report of {day}"
        >>> report("monday")
        'report of monday'
        """
        from ._decorators import Locking

        if kind not in ("mutex", "fair"):
            raise InvalidError(f"kind: got {kind!r}, expected mutex or fair")
        if on_busy not in ("wait", "skip", "raise"):
            raise InvalidError(f"on_busy: got {on_busy!r}, expected wait, skip or raise")
        make, locks = FairMutex if kind == "fair" else Mutex, self.configured(**options)
        limit = optional_seconds(timeout)
        is_patient = on_busy == "wait" and timeout is None
        skips = on_busy == "skip"
        by = Locking(lambda name: make(locks, name, None, None, {}), name, guard, is_patient, limit, skips)
        return by.decorate

    def cache(
        self,
        name: str,
        ttl: Seconds,
        *,
        codec: Codec = "json",
        stale: Seconds = 0.0,
        wait: Seconds = 5.0,
        overdue: str = "compute",
        outage: str = "compute",
        early: float = 1.0,
        jitter: float = 0.1,
        max_bytes: int = 1 << 20,
    ) -> Cache:
        """A value that one caller computes for a whole fleet, kept in this store for `ttl` after it was
        computed: see `Cache`.

        - `codec` is `json`, `text`, `bytes`, `pickle`, or a pair of functions to and from bytes. A value that
          would come back as another one, such as a tuple from JSON, is an error.
        - `stale`: how long after its ttl a value may still be returned while one caller computes the next.
        - `wait`: how long a caller waits for another caller's computation. Then it computes too, or fails with
          `OverdueError`, as `overdue` says: `compute` or `fail`.
        - `outage`: what a caller does if the store does not answer, `compute` or `fail`.
        - `early`: how eagerly one caller recomputes before the value expires; `jitter`: the share of its ttl by
          which a value expires early, at random.

        >>> import tenure
        >>> user = tenure.connect("memory:").cache("user:42", ttl=60)
        >>> user.get_or_compute(lambda: {"name": "Ada"})
        {'name': 'Ada'}
        """
        from ._caches import Cache

        times = {"stale": seconds(stale), "wait": seconds(wait)}
        return Cache(self._opened, name, seconds(ttl), codec, {
            **times, "overdue": overdue, "outage": outage, "early": early, "jitter": jitter, "max_bytes": max_bytes,
        })  # fmt: skip

    def fill(self, name: str, *, wait: Seconds = 5.0, overdue: str = "compute", outage: str = "compute") -> Fill:
        """A cache of your own, such as a table, memcached or a file, which one caller in a fleet fills while the
        others wait. Options as for `cache`. Works on a quorum, too.

        >>> import tenure
        >>> table = {}
        >>> report = tenure.connect("memory:").fill("report")
        >>> report.run(lambda: table.get("report"), lambda fence: table.setdefault("report", "42 orders"))
        '42 orders'
        """
        from ._caches import Fill

        return Fill(self._opened, name, seconds(wait), overdue, outage)

    def cached(self, name: str, ttl: Seconds, **options: Any) -> Caching:
        """A decorator that caches the results of a function, sync or async. `name` may contain its arguments in
        braces. Options as for `cache`. The function has `invalidate` and `refresh`, with the same arguments.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> @locks.cached("square:{of}", ttl=60)
        ... def square(of):
        ...     print("computing")
        ...     return of * of
        >>> square(7), square(7)
        computing
        (49, 49)
        """
        from ._decorators import cached

        self.cache("checks the options", ttl, **options)
        decorate: Any = cached(lambda name: self.cache(name, ttl, **options), name)
        return cast("Caching", decorate)

    def once_per(
        self,
        name: str,
        period: Period,
        *,
        open_for: Optional[Seconds] = None,
        reopens_on: str = "failure",
        again: bool = False,
    ) -> OncePer:
        """A job that runs at most once in each window of a period, on whichever host asks first: see `OncePer`.

        `period` is a time (windows are counted from 1970 UTC), `tenure.daily`, `weekly`, `monthly` or `cron`, or a
        function from a `datetime` to the window that contains it, as two of them. `open_for` limits how long after the start of
        a window the job may begin. `reopens_on` says what lets it run again: `nothing`, `failure`, or
        `failure_or_loss`. With `again` it runs although it has run in this window, or died: for a run by hand.

        >>> import tenure
        >>> digest = tenure.connect("memory:").once_per("digest", 86_400)
        >>> bool(digest.run(print, "sent")), bool(digest.run(print, "sent"))
        sent
        (True, False)
        """
        from ._uses import OncePer

        return OncePer(self._opened, name, period, optional_seconds(open_for), reopens_on, again)

    def job(
        self,
        name: str,
        period: Optional[Period] = None,
        *,
        cron: Optional[str] = None,
        zone: Optional[Zone] = None,
        open_for: Optional[Seconds] = None,
        reopens_on: str = "failure",
    ) -> Callable[[F], F]:
        """A decorator that declares a job, which `run_jobs` runs in each of its windows: those of a cron expression,
        or of a `period`. Other arguments as for `once_per`. If the function has a parameter `turn`, it gets the
        `Turn`.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> @locks.job("nightly", cron="0 2 * * *", zone="Europe/Berlin")
        ... def nightly(turn):
        ...     print("the window began at", turn.window[0])
        """
        from . import _uses
        from ._jobs import Job

        if (cron is None) == (period is None) or (cron is None and zone is not None):
            raise InvalidError(f"job {name}: expected a cron expression, perhaps with a zone, or a period")
        windows = period if cron is None else _uses.cron(cron, zone)
        once_per = self.once_per(name, cast("Period", windows), open_for=open_for, reopens_on=reopens_on)

        def declare(function: F) -> F:
            self._jobs.append(Job(function, once_per))
            return function

        return declare

    def run_jobs(self, stop: Optional[threading.Event] = None) -> None:
        """Runs the declared jobs, each in a thread, in each of their windows, until `stop` is set or Ctrl-C. A run in
        progress is finished first. Any number of processes may do this; one of them runs each window, and failures
        are logged and repeated. A store that refuses from the start, or a job that can never run, ends all of them
        with its error."""
        import threading

        from ._jobs import run

        run(self._jobs, threading.Event() if stop is None else stop)

    async def arun_jobs(self) -> None:
        """Like `run_jobs`, in an event loop, for async functions, until the task is cancelled. Runs in progress are
        cancelled then, and after an error."""
        from ._jobs import arun

        await arun(self._jobs)

    def election(self, name: str, payload: str = "") -> Election:
        """An election of one leader among many candidates: see `Election`. `payload` tells others how to reach
        the leader.

        >>> import tenure
        >>> election = tenure.connect("memory:").election("scheduler", "host-1:8080")
        >>> with election.campaign():
        ...     election.leader().payload
        'host-1:8080'
        """
        from ._uses import Election

        return Election(self._opened, name, payload)

    def inspect(self, name: str) -> Optional[Status]:
        """The state of a lock with its holders, or `None` if it is free.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.mutex("nightly") as guard:
        ...     locks.inspect("nightly").holders[0].owner == guard.owner
        True
        """
        return _status(run(self._opened().inspect(name)))

    async def ainspect(self, name: str) -> Optional[Status]:
        """Like `inspect`, in an event loop."""
        return _status(await wait(self._opened().inspect(name)))

    def list(self, prefix: str = "") -> Iterator[Status]:
        """The held locks whose names begin with `prefix`. It scans the whole store.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.mutex("orders:42"):
        ...     [status.name for status in locks.list("orders:")]
        ['orders:42']
        """
        listing = self._opened().list(prefix)
        while (status := _status(run(listing.next()))) is not None:
            yield status

    async def alist(self, prefix: str = "") -> AsyncIterator[Status]:
        """Like `list`, in an event loop."""
        listing = self._opened().list(prefix)
        while (status := _status(await wait(listing.next()))) is not None:
            yield status

    def force_release_foreign(self, name: str) -> Optional[Status]:
        """Removes a string that another program stored as a lock, and returns it; `None` if there is none."""
        return _status(run(self._opened().force_release_foreign(name)))

    async def aforce_release_foreign(self, name: str) -> Optional[Status]:
        """Like `force_release_foreign`, in an event loop."""
        return _status(await wait(self._opened().force_release_foreign(name)))

    def force_release_owner(self, name: str, owner: str) -> ForcedRelease:
        """Ends the hold of this owner, and no other."""
        return _forced(run(self._opened().force_release_of(name, owner, 0)))

    async def aforce_release_owner(self, name: str, owner: str) -> ForcedRelease:
        """Like `force_release_owner`, in an event loop."""
        return _forced(await wait(self._opened().force_release_of(name, owner, 0)))

    def force_release_token(self, name: str, token: int) -> ForcedRelease:
        """Ends the grant with this fencing token, and no later one."""
        return _forced(run(self._opened().force_release_of(name, None, token)))

    async def aforce_release_token(self, name: str, token: int) -> ForcedRelease:
        """Like `force_release_token`, in an event loop."""
        return _forced(await wait(self._opened().force_release_of(name, None, token)))

    def request_stop(self, name: str, reason: str = "") -> Optional[Status]:
        """Asks the holders of a lock to stop, and returns them; `None` if it is free. Ends no hold: a holder
        learns of it by `stop_requested`, and the command of `tenure run` gets a SIGTERM.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.mutex("deploy") as guard:
        ...     locks.request_stop("deploy", "a hotfix waits").name
        'deploy'
        """
        return _status(run(self._opened().request_stop(name, reason)))

    async def arequest_stop(self, name: str, reason: str = "") -> Optional[Status]:
        """Like `request_stop`, in an event loop."""
        return _status(await wait(self._opened().request_stop(name, reason)))

    def stop_requested(self, guard: Guard, timeout: Optional[Seconds] = None) -> Optional[StopRequest]:
        """Waits until the holder of this guard is asked to stop, or the holder of any of its locks if there are
        several; `None` once the guard is released, or at the timeout. The guard must be of a lock of these
        `Locks`."""
        op = self._opened().stop_requested(guard._hold)
        return _stop_request(op.result()) if block(op, optional_seconds(timeout)) else None

    async def astop_requested(self, guard: Guard) -> Optional[StopRequest]:
        """Like `stop_requested`, in an event loop."""
        return _stop_request(await wait(self._opened().stop_requested(guard._hold)))

    def jobs(self, prefix: str = "") -> builtins.list[JobStatus]:
        """The jobs of `once_per` that have run and whose names begin with `prefix`, with their last ten runs. It
        scans the whole store.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> _ = locks.once_per("report", 3600).run(lambda turn: None)
        >>> [(job.name, job.last.outcome, job.overdue) for job in locks.jobs()]
        [('report', 'done', None)]
        """
        return _jobs(run(self._opened().jobs(prefix)))

    async def ajobs(self, prefix: str = "") -> builtins.list[JobStatus]:
        """Like `jobs`, in an event loop."""
        return _jobs(await wait(self._opened().jobs(prefix)))

    def elections(self, prefix: str = "") -> builtins.list[ElectionStatus]:
        """The elections that somebody has led and whose names begin with `prefix`, with their leaders and candidates.
        It scans the whole store.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.election("scheduler", "host-1:8080").campaign():
        ...     [(election.name, election.leader.payload) for election in locks.elections()]
        [('scheduler', 'host-1:8080')]
        """
        return _elections(run(self._opened().elections(prefix)))

    async def aelections(self, prefix: str = "") -> builtins.list[ElectionStatus]:
        """Like `elections`, in an event loop."""
        return _elections(await wait(self._opened().elections(prefix)))

    def force_release(self, name: str) -> Optional[Status]:
        """Ends all holds of a lock, and returns its holders, or `None` if it was free. For operators: it breaks
        exclusion until the holders notice."""
        return _status(run(self._opened().force_release(name)))

    async def aforce_release(self, name: str) -> Optional[Status]:
        """Like `force_release`, in an event loop."""
        return _status(await wait(self._opened().force_release(name)))

    def resume(self, name: str, owner: str) -> Optional[Guard]:
        """Takes over a hold that `Guard.detach` gave up, perhaps in another process; `None` if it has ended.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> owner = locks.mutex("deploy").lock().detach()
        >>> with locks.resume("deploy", owner) as guard:
        ...     guard.owner == owner
        True
        """
        guard: Optional[Guard] = granted(self._opened().resume(name, owner), Guard)
        return guard

    async def aresume(self, name: str, owner: str) -> Optional[Guard]:
        """Like `resume`, in an event loop."""
        hold = await wait(self._opened().resume(name, owner))
        return None if hold is None else Guard(hold)

    def renew_detached(self, name: str, owner: str) -> Optional[float]:
        """Extends a detached hold to a full ttl, and returns its remaining seconds; `None` if it has ended."""
        left: Optional[float] = run(self._opened().renew_detached(name, owner))
        return left

    async def arenew_detached(self, name: str, owner: str) -> Optional[float]:
        """Like `renew_detached`, in an event loop."""
        left: Optional[float] = await wait(self._opened().renew_detached(name, owner))
        return left

    def metrics(self) -> Metrics:
        """The metrics of this process and store.

        >>> import tenure
        >>> locks = tenure.connect("memory:")
        >>> with locks.mutex("nightly"):
        ...     locks.metrics().total.held
        1
        """
        from ._values import Metrics

        return Metrics.of(self._opened().metrics())

    def __reduce__(self) -> Any:
        if self._store.bound_by is not None:
            raise TypeError(f"locks with {self._store.bound_by} cannot be pickled: open the store in the other process")
        return _unpickled, (self._store.url, self._options)

    def __repr__(self) -> str:
        return f"<tenure.Locks {self.url!r}>"


def _unpickled(url: str, options: Options) -> Locks:
    return Locks(_Store(url, partial(open_url, url)), options)


def opened(url: str, options: Options, credentials: Optional[Login] = None) -> Locks:
    """Opens a store without I/O."""
    _log.follow()
    bound_by = None if credentials is None else "a function for credentials"
    return Locks(_Store(url, partial(open_url, url, credentials), bound_by), options)


def quorum_of(members: list[Locks]) -> Locks:
    def open_quorum() -> _native.Locks:
        return _native.Locks.quorum([member._opened() for member in members])

    _log.follow()
    return Locks(_Store("quorum:", open_quorum, "several stores"), {})


def of_testing(native: _native.Locks) -> Locks:
    generation = _fork.generation

    def same() -> _native.Locks:
        if _fork.generation != generation:
            raise ForkedError("the store belongs to the parent process: make another in the child")
        return native

    return Locks(_Store("testing:", same, "a store for tests"), {})


class Lock(_native.Blocks, Generic[G]):
    """Common to all kinds of locks: `lock`, `try_lock`, `with` and `async with`."""

    _kind = "lock"
    _guard_type: type[Guard] = Guard

    def __init__(
        self,
        locks: Locks,
        name: str,
        timeout: Optional[Seconds],
        on_lost: Optional[Callable[[LostError], object]],
        options: Options,
    ) -> None:
        self._locks = locks.configured(**options) if options else locks
        self.name = name
        """The name, without the prefix."""
        self._timeout = optional_seconds(timeout)
        self._on_lost = on_lost
        if on_lost is not None:
            check_callback(on_lost)
        self._handle: Optional[_native.Lock] = None
        self._generation = -1
        self._opened()

    def _open(self, native: _native.Locks) -> _native.Lock:
        raise NotImplementedError

    def _opened(self) -> _native.Lock:
        handle = self._handle
        if handle is None or self._generation != _fork.generation:
            handle = self._handle = self._open(self._locks._opened())
            self._generation = _fork.generation
        return handle

    def _guard(self, hold: Any) -> G:
        guard: Any = self._guard_type(hold)
        if self._on_lost is not None:
            guard.on_lost(self._on_lost)
        return cast(G, guard)

    def lock(self) -> G:
        """Waits until the lock is granted. Ctrl-C ends the wait and leaves the queue."""
        guard: G = granted(self._opened().lock(), self._guard)
        return guard

    def alock(self) -> Coroutine[Any, Any, G]:
        """Like `lock`, in an event loop. Cancelling the task leaves the queue."""
        return self._alock(self._opened().lock())

    async def _alock(self, op: _native.Op) -> G:
        return self._guard(await wait(op))

    def try_lock(self, timeout: Optional[Seconds] = None) -> Optional[G]:
        """Tries once, or waits for at most `timeout`. Returns `None` if the lock is busy."""
        guard: Optional[G] = granted(self._opened().try_lock(optional_seconds(timeout)), self._guard)
        return guard

    def atry_lock(self, timeout: Optional[Seconds] = None) -> Coroutine[Any, Any, Optional[G]]:
        """Like `try_lock`, in an event loop."""
        return self._atry_lock(self._opened().try_lock(optional_seconds(timeout)))

    async def _atry_lock(self, op: _native.Op) -> Optional[G]:
        hold = await wait(op)
        return None if hold is None else self._guard(hold)

    def busy(self, timeout: Optional[Seconds]) -> BusyError:
        """The error of a wait that timed out."""
        waited = "" if timeout is None else f": it was not granted within {seconds(timeout):g} s"
        return BusyError(f"lock `{self.name}` is busy{waited}", self.name, self._locks.url)

    def _acquire(self) -> G:
        guard = self.lock() if self._timeout is None else self.try_lock(self._timeout)
        if guard is None:
            raise self.busy(self._timeout)
        return guard

    if TYPE_CHECKING:  # the extension has them

        def __enter__(self) -> G: ...

        def __exit__(
            self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
        ) -> None: ...

    def __aenter__(self) -> Coroutine[Any, Any, G]:
        return self._aenter(id(sys._getframe(1)))

    async def _aenter(self, frame: int) -> G:
        opened, timeout = self._opened(), self._timeout
        hold = await wait(opened.lock() if timeout is None else opened.try_lock(timeout))
        if hold is None:
            raise self.busy(timeout)
        guard = self._guard(hold)
        self._enter(frame, guard)
        return guard

    def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> Coroutine[Any, Any, None]:
        left: Coroutine[Any, Any, None] = self._leave(id(sys._getframe(1))).__aexit__(kind, error, trace)
        return left

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def __repr__(self) -> str:
        return f"<tenure.{type(self).__name__} {self.name!r} at {self._locks.url}>"


class Mutex(Lock[Guard]):
    """A lock with one holder at a time: see `Locks.mutex`. Each acquisition has its own owner, so a thread that
    locks it twice waits for itself."""

    def _open(self, native: _native.Locks) -> _native.Lock:
        return native.mutex(self.name)


class FairMutex(Lock[Guard]):
    """A lock with one holder at a time, first come, first served: see `Locks.fair_mutex`."""

    def _open(self, native: _native.Locks) -> _native.Lock:
        return native.fair_mutex(self.name)


class _Owners(_local):
    """The owners of reentrant mutexes: of this thread, and of its tasks."""

    def __init__(self) -> None:
        self.generation = _fork.generation
        self.thread: dict[str, str] = {}
        self.tasks: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()

    def current(self, label: str) -> str:
        """The one with this label."""
        if self.generation != _fork.generation:
            self.__init__()  # type: ignore[misc]
        running = _wait.current()
        owners = self.thread if isinstance(running, int) else self.tasks.setdefault(running, {})
        if label not in owners:
            owners[label] = _native.new_owner(label)
        return owners[label]


_owners = _Owners()


class ReentrantMutex(Lock[Guard]):
    """A lock with one owner at a time, who may hold it several times: see `Locks.reentrant_mutex`."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        timeout: Optional[Seconds],
        on_lost: Optional[Callable[[LostError], object]],
        options: Options,
        owner: Optional[str],
    ) -> None:
        self._owner = owner
        super().__init__(locks, name, timeout, on_lost, options)

    @property
    def owner(self) -> str:
        """The owner of acquisitions here."""
        return self._owner or _owners.current(self._locks._options.get("label") or "")

    def _opened(self) -> _native.Lock:
        return self._locks._opened().reentrant_mutex(self.name, self.owner)

    def hold_count(self) -> int:
        """How often the owner holds the lock."""
        count: int = run(self._opened().hold_count())
        return count

    def ahold_count(self) -> Coroutine[Any, Any, int]:
        """Like `hold_count`, in an event loop."""
        return wait(self._opened().hold_count())


class RwSide(Lock[RwGuard]):
    """One side of a read-write lock."""

    _guard_type = RwGuard

    def __init__(
        self,
        locks: Locks,
        name: str,
        timeout: Optional[Seconds],
        on_lost: Optional[Callable[[LostError], object]],
        side: str,
    ) -> None:
        self.side = side
        """`read`, `upgradeable` or `write`."""
        super().__init__(locks, name, timeout, on_lost, {})

    def _open(self, native: _native.Locks) -> _native.Lock:
        return native.rwlock(self.name, self.side)

    def __repr__(self) -> str:
        return f"<tenure.RwLock {self.name!r} to {self.side} at {self._locks.url}>"


class RwLock:
    """A lock with many readers or one writer: see `Locks.rwlock`."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        timeout: Optional[Seconds],
        on_lost: Optional[Callable[[LostError], object]],
        options: Options,
    ) -> None:
        self._locks = locks.configured(**options) if options else locks
        self.name = name
        """The name, without the prefix."""
        self._timeout = timeout
        self._on_lost = on_lost
        self.read()

    def _side(self, side: str) -> RwSide:
        return RwSide(self._locks, self.name, self._timeout, self._on_lost, side)

    def read(self) -> RwSide:
        """The side of the readers."""
        return self._side("read")

    def upgradeable(self) -> RwSide:
        """The side of the one reader that may become the writer, by `upgrade`."""
        return self._side("upgradeable")

    def write(self) -> RwSide:
        """The side of the writer."""
        return self._side("write")

    def __repr__(self) -> str:
        return f"<tenure.RwLock {self.name!r} at {self._locks.url}>"


class Semaphore(Lock[Guard]):
    """A lock with as many holders as there are permits: see `Locks.semaphore`."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        timeout: Optional[Seconds],
        on_lost: Optional[Callable[[LostError], object]],
        options: Options,
        permits: int,
        taken: int,
    ) -> None:
        self.permits = permits
        """The total number of permits."""
        self._taken = taken
        super().__init__(locks, name, timeout, on_lost, options)

    def _open(self, native: _native.Locks) -> _native.Lock:
        return native.semaphore(self.name, self.permits, self._taken)

    def many(self, permits: int) -> Semaphore:
        """The same semaphore, but each acquisition takes this number of permits."""
        return Semaphore(self._locks, self.name, self._timeout, self._on_lost, {}, self.permits, permits)

    def set_permits(self, permits: int) -> None:
        """Changes the number of permits for all clients, which need no restart."""
        run(self._locks._opened().set_permits(self.name, permits))

    async def aset_permits(self, permits: int) -> None:
        """Like `set_permits`, in an event loop."""
        await wait(self._locks._opened().set_permits(self.name, permits))


Part = Union[Mutex, FairMutex, ReentrantMutex, RwSide, Semaphore]


class Multi(Lock[MultiGuard]):
    """Several locks at once, all or none: see `multi`."""

    def __init__(self, parts: list[Any], timeout: Optional[Seconds]) -> None:
        if not parts:
            raise InvalidError("a multi-lock needs at least one lock")
        self._parts = parts
        super().__init__(parts[0]._locks, ", ".join(part.name for part in parts), timeout, None, {})

    def _opened(self) -> _native.Lock:
        if any(isinstance(part, ReentrantMutex) for part in self._parts):
            self._handle = None  # their owner depends on the caller
        return super()._opened()

    def _open(self, native: _native.Locks) -> _native.Lock:
        return _native.Lock.multi([part._opened() for part in self._parts])

    def _guard(self, hold: Any) -> MultiGuard:
        return MultiGuard(hold)


def multi(*locks: Part, timeout: Optional[Seconds] = None) -> Multi:
    """Several locks at once, of any kind and on any store, all or none. They are acquired in the order of their
    names, so that two processes cannot wait for each other.

    >>> import tenure
    >>> locks = tenure.connect("memory:")
    >>> with tenure.multi(locks.mutex("a"), locks.rwlock("b").read()) as guard:
    ...     guard.is_held()
    True
    """
    return Multi(list(locks), timeout)
