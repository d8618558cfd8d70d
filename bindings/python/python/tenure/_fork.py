"""Fork handling. A child has none of the library's threads, so it opens its stores again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_generation = 0
_process = os.getpid()
_handlers: list[Callable[[], None]] = []


def in_child(handler: Callable[[], None]) -> None:
    """Calls `handler` in each child."""
    _handlers.append(handler)


def generation() -> int:
    """The number of forks between the process that imported the package and this one."""
    if os.getpid() != _process:
        _after_fork()  # by uWSGI, which may fork without the hooks of Python
    return _generation


def _after_fork() -> None:
    global _generation, _process
    _generation, _process = _generation + 1, os.getpid()
    for handler in _handlers:
        handler()


os.register_at_fork(after_in_child=_after_fork)


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
