"""Fork handling. A child has none of the library's threads, so it opens its stores again."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from collections.abc import Callable

generation: int = 0
"""The number of forks between the process that imported the package and this one."""

_handlers: list[Callable[[], None]] = []


def in_child(handler: Callable[[], None]) -> None:
    """Calls `handler` in each child."""
    _handlers.append(handler)


def _close_inherited_files() -> None:
    """Closes the files of `file:` stores that this child inherited from its parent.

    A hold in a `file:` store lasts as long as any process has its file open, and a child must not keep the parent's
    holds alive.
    """
    files: set[tuple[int, int]] = set()
    for number in _native.take_inherited_files():
        try:
            files.add(_identity(number))
        except OSError:
            continue  # the program has closed it
    if not files:
        return
    # By identity, because another thread may just have opened one of the files once more.
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if _identity(number) in files:
                os.close(number)
        except OSError:
            continue  # the descriptor of the listing itself


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    global generation
    generation += 1
    _native.forked()
    _close_inherited_files()
    for handler in _handlers:
        handler()


os.register_at_fork(after_in_child=_after_fork)


def _follow_uwsgi() -> None:
    """uWSGI forks without the hooks of Python, and calls one of its own."""
    try:
        uwsgi: Any = import_module("uwsgi")
    except ImportError:
        return
    before = getattr(uwsgi, "post_fork_hook", None)

    def hook() -> None:
        _after_fork()
        if before is not None:
            before()

    uwsgi.post_fork_hook = hook
    try:
        decorators: Any = import_module("uwsgidecorators")
        decorators.postfork_chain.insert(0, _after_fork)  # it replaces the hook
    except ImportError:
        pass


_follow_uwsgi()
