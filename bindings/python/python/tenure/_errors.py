"""The exceptions. Messages are the same as in the library and the command."""

from __future__ import annotations

from typing import Optional

__all__ = [
    "BusyError",
    "ClosedError",
    "Error",
    "ForkedError",
    "InvalidError",
    "LostError",
    "MismatchError",
    "OverdueError",
    "RefusedError",
    "ReleasedError",
    "UnknownError",
    "UnreachableError",
    "UnsupportedError",
]


class Error(Exception):
    """Base class of all exceptions of this package.

    >>> import tenure
    >>> try:
    ...     tenure.connect("memory:").mutex("")
    ... except tenure.Error as error:
    ...     error.kind
    'invalid'
    """

    kind: str = "error"
    """The kind as one word, as in the library's `ErrorKind`: stable between versions."""

    def __init__(self, message: str, lock: Optional[str] = None, store: Optional[str] = None) -> None:
        super().__init__(message)
        self.lock = lock
        """The name of the lock concerned."""
        self.store = store
        """The URL of the store concerned, without credentials."""

    def __reduce__(self) -> tuple[type[Error], tuple[str, Optional[str], Optional[str]]]:
        return type(self), (str(self), self.lock, self.store)


class LostError(Error):
    """The lock is no longer held: its lease expired, another client took it, or the store lost it."""

    kind = "lost"


class BusyError(Error, TimeoutError):
    """Another client held the lock until the timeout."""

    kind = "busy"


class UnreachableError(Error, ConnectionError):
    """The store did not answer in time, and any change is undone."""

    kind = "unreachable"


class OverdueError(Error, TimeoutError):
    """Another caller's computation did not finish within the wait of the cache."""

    kind = "overdue"


class UnknownError(Error):
    """The request was sent but no reply arrived: it may or may not have been carried out."""

    kind = "unknown"


class RefusedError(Error):
    """The store rejected the request: no permission, out of memory, or a damaged record."""

    kind = "refused"


class MismatchError(Error):
    """The name is in use as another kind of lock, or with another number of permits."""

    kind = "mismatch"


class UnsupportedError(Error):
    """The store, or this build, cannot provide what was requested."""

    kind = "unsupported"


class InvalidError(Error, ValueError):
    """A name, option, owner or URL is invalid."""

    kind = "invalid"


class ReleasedError(Error):
    """The guard was released, detached or kept before, so nothing can be done with it."""

    kind = "released"


class ForkedError(Error):
    """The guard was acquired by the parent process. A fork does not share locks."""

    kind = "forked"


class ClosedError(Error):
    """The interpreter is shutting down, and has released its locks."""

    kind = "closed"


_KINDS: dict[str, type[Error]] = {
    kind.kind: kind
    for kind in (
        LostError, BusyError, UnreachableError, OverdueError, UnknownError, RefusedError, MismatchError,
        UnsupportedError, InvalidError, ReleasedError, ForkedError, ClosedError,
    )
}  # fmt: skip


def make(kind: str, message: str, lock: Optional[str], store: Optional[str]) -> Error:
    """The exception for an error of the extension."""
    return _KINDS.get(kind, Error)(message, lock, store)
