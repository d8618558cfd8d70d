"""The `Lock` of redis-py: the same arguments, methods and errors of a lock. An outage raises a `tenure.Error`.

>>> import tenure
>>> from tenure.compat.redis import Lock
>>> lock = Lock(tenure.connect("memory:"), "report", timeout=10, blocking_timeout=1)
>>> with lock:
...     lock.owned()
True

The first argument may also be the `redis.Redis` client that redis-py's `Lock` had: its server is opened again. What
differs is what redis-py lacks: a waiter is woken by a message, so `sleep` does nothing, and `lock.guard` has the
fencing token and the signal of a loss. A lock with a `timeout` stays taken until its release or the end of its lease,
even if nothing refers to it any more or the process ends (with a `file:` store, only until the process ends). Without a
`timeout` the lease is renewed instead of never ending, and the lock is released when nothing refers to it. A lease that
is set to a shorter time ends by then here, but keeps others out for as long as before. The store keeps the owner and
the fencing token as the value, so `acquire` refuses a `token`.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional, Union
from urllib.parse import quote

from .. import _native
from .._errors import Error, ForkedError, InvalidError, LostError, ReleasedError
from .._locks import Locks, Mutex, Options, opened
from .._log import debug
from .._wait import Seconds, optional_seconds, run, seconds, wait

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from .._guards import Guard

    class LockError(Exception):
        """The lock was not acquired, or is not held."""

    class LockNotOwnedError(LockError):
        """The lock is no longer held."""

else:
    try:
        from redis.exceptions import LockError, LockNotOwnedError
    except ImportError:

        class LockError(ValueError):
            """The lock was not acquired, or is not held."""

        class LockNotOwnedError(LockError):
            """The lock is no longer held."""


__all__ = ["AsyncLock", "Lock", "LockError", "LockNotOwnedError"]

_opened: weakref.WeakKeyDictionary[Any, Locks] = weakref.WeakKeyDictionary()


def _locks_of(client: Any) -> Locks:
    """The locks on the server of a client of redis-py."""
    if isinstance(client, Locks):
        return client
    pool: Any = getattr(client, "connection_pool", None)
    options: dict[str, Any] = getattr(pool, "connection_kwargs", {})
    sort = getattr(getattr(pool, "connection_class", None), "__name__", "")
    if "host" not in options and "path" not in options and sort not in ("Connection", "SSLConnection"):
        raise InvalidError(f"got {type(client).__name__}, expected a redis.Redis of one server, or tenure.connect(…)")
    for option in ("credential_provider", "ssl_ca_path", "ssl_ca_data", "ssl_password"):
        if options.get(option) is not None:
            raise InvalidError(f"{option} of a redis.Redis: not supported, use tenure.connect(…)")
    if pool not in _opened:
        user, password, database = options.get("username") or "", options.get("password") or "", options.get("db") or 0
        user, password = quote(user, safe=""), quote(password, safe="")
        host: str = options.get("host") or "localhost"
        host = f"[{host}]" if ":" in host else host
        login = f"{user}:{password}@" if user or password else ""
        scheme = "rediss" if "SSL" in sort else "redis"
        told = {key: options.get(f"ssl_{key}") for key in ("ca_certs", "certfile", "keyfile", "cert_reqs")}
        tls = "&".join(f"ssl_{key}={quote(value, safe='')}" for key, value in told.items() if isinstance(value, str))
        url = f"{scheme}://{login}{host}:{options.get('port', 6379)}/{database}"
        if tls and scheme == "rediss":
            url += f"?{tls}"
        if "path" in options:
            login = f"&user={user}&password={password}" if user or password else ""
            url = f"redis+unix://{quote(options['path'])}?db={database}{login}"
        _opened[pool] = opened(url, {})
    return _opened[pool]


class _Lock:
    """What the blocking and the asyncio lock share."""

    # Whether each thread has a hold of its own, unless the caller says.
    _by_thread = True

    def __init__(
        self,
        redis: Any,
        name: Union[str, bytes],
        timeout: Optional[Seconds] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[Seconds] = None,
        thread_local: Optional[bool] = None,
        raise_on_release_error: bool = True,
    ) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name
        self.timeout = optional_seconds(timeout)
        self.sleep, self.blocking = sleep, blocking
        self.blocking_timeout = optional_seconds(blocking_timeout)
        self.thread_local = self._by_thread if thread_local is None else thread_local
        self.raise_on_release_error = raise_on_release_error
        self._locks = _locks_of(redis)
        options: Options = {} if self.timeout is None else {"ttl": self.timeout, "renew": False}
        self._mutex: Mutex = self._locks.mutex(self.name, **options)
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()

    @property
    def guard(self) -> Optional[Guard]:
        """The guard, while the lock is held here."""
        guard: Optional[Guard] = getattr(self.local, "guard", None)
        return guard

    def _held(self, to: str) -> Guard:
        guard = self.guard
        if guard is None:
            raise LockError(f"Cannot {to} an unlocked lock")
        if to in ("extend", "reacquire") and self.timeout is None:
            raise LockError(f"Cannot {to} a lock with no timeout")
        return guard

    def _limit(
        self, blocking: Optional[bool], blocking_timeout: Optional[Seconds], token: Optional[str]
    ) -> Optional[float]:
        """How long to wait: `None` for once, and infinity."""
        if token is not None:
            raise InvalidError("token: not supported, the store keeps the owner and the fencing token of the guard")
        limit = self.blocking_timeout if blocking_timeout is None else seconds(blocking_timeout)
        if not (self.blocking if blocking is None else blocking):
            return None
        return float("inf") if limit is None else limit

    def _extended(self, guard: Guard, time: Seconds, replaces: bool) -> _native.Op:
        """Sets the lease to this time, or adds it to what is left."""
        return guard._hold.renew_for(seconds(time), adds=not replaces)

    def _took(self, guard: Optional[Guard]) -> bool:
        """Keeps the guard of a successful acquisition."""
        if guard is None:
            return False
        if self.timeout is not None:
            guard._hold.leave_to_lease()
        self.local.guard = guard
        return True

    @contextmanager
    def _owning(self, to: str) -> Generator[None, None, None]:
        try:
            yield
        except (LostError, ReleasedError) as lost:
            raise LockNotOwnedError(f"Cannot {to} a lock that's no longer owned: {lost}") from lost

    @contextmanager
    def _leaving(self, error: Optional[BaseException]) -> Generator[None, None, None]:
        """The release at the end of a block, which `error` has ended."""
        try:
            yield
        except ForkedError:
            # Nothing was acquired in this process.
            if error is None:
                raise
        except LockError as failed:
            if self.raise_on_release_error:
                # Extensions in Rust do not know what is being handled.
                (failed.__cause__ or failed).__context__ = error
                raise
            debug("the release of %s failed: %s", self.name, failed)
        except Error as failed:
            if error is None:
                raise
            debug("the release of %s failed: %s", self.name, failed)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.name!r} at {self._locks.url}>"


class Lock(_Lock):
    """See the module."""

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[Seconds] = None,
        token: Optional[str] = None,
    ) -> bool:
        """Waits for the lock, and returns whether it was granted."""
        limit = self._limit(blocking, blocking_timeout, token)
        return self._took(self._mutex.lock() if limit == float("inf") else self._mutex.try_lock(limit))

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return self._locks.inspect(self.name) is not None

    def owned(self) -> bool:
        """Whether this lock is held here, by the store's word."""
        try:
            if self.guard is not None:
                self.guard.verify()
            return self.guard is not None
        except (LostError, ReleasedError, ForkedError):
            return False

    def release(self) -> None:
        """Releases the lock."""
        guard = self._held("release")
        self.local.guard = None
        with self._owning("release"):
            guard.release()

    def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> bool:
        """Adds time to the lease, or sets it. After an error other than `LockNotOwnedError` the lock is still held."""
        guard = self._held("extend")
        with self._owning("extend"):
            run(self._extended(guard, additional_time, replace_ttl))
        return True

    def reacquire(self) -> bool:
        """Sets the lease to `timeout` again. Errors are those of `extend`."""
        guard = self._held("reacquire")
        with self._owning("reacquire"):
            run(self._extended(guard, self.timeout or 0.0, True))
        return True

    def __enter__(self) -> Lock:
        if not self.acquire():
            raise LockError("Unable to acquire lock within the time specified")
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with self._leaving(error):
            self.release()


class AsyncLock(_Lock):
    """The same for `redis.asyncio`."""

    _by_thread = False

    async def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[Seconds] = None,
        token: Optional[str] = None,
    ) -> bool:
        """Waits for the lock, and returns whether it was granted."""
        limit = self._limit(blocking, blocking_timeout, token)
        return self._took(await (self._mutex.alock() if limit == float("inf") else self._mutex.atry_lock(limit)))

    async def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return await self._locks.ainspect(self.name) is not None

    async def owned(self) -> bool:
        """Whether this lock is held here, by the store's word."""
        try:
            if self.guard is not None:
                await self.guard.averify()
            return self.guard is not None
        except (LostError, ReleasedError, ForkedError):
            return False

    async def release(self) -> None:
        """Releases the lock."""
        guard = self._held("release")
        self.local.guard = None
        with self._owning("release"):
            await guard.arelease()

    async def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> bool:
        """Adds time to the lease, or sets it. After a cancellation, or an error other than `LockNotOwnedError`, the
        lock is still held."""
        guard = self._held("extend")
        with self._owning("extend"):
            await wait(self._extended(guard, additional_time, replace_ttl))
        return True

    async def reacquire(self) -> bool:
        """Sets the lease to `timeout` again. Errors and cancellation are those of `extend`."""
        guard = self._held("reacquire")
        with self._owning("reacquire"):
            await wait(self._extended(guard, self.timeout or 0.0, True))
        return True

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire():
            raise LockError("Unable to acquire lock within the time specified")
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with self._leaving(error):
            await self.release()
