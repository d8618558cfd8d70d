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


def _after_fork() -> None:
    global generation
    generation += 1
    _native.forked()
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


def close_files_below(directory: str) -> None:
    """Closes the descriptors of files in a directory that this child inherited from its parent.

    A hold in a `file:` store lasts as long as any process has its files open, and a child must not keep the
    parent's holds alive.
    """
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            if path.startswith(directory + "/"):
                os.close(int(number))
        except OSError:
            continue  # the descriptor of the listing itself
