"""Refuses subinterpreters, which the extension does not support. Imported before the extension."""

from __future__ import annotations

import importlib
from typing import Any


def is_main() -> bool:
    """Whether this is the first interpreter of its process."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not is_main():
    raise ImportError("tenure does not support subinterpreters: import it in the main interpreter of a process")
