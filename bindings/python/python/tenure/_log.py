"""Passes events of the library to `logging`."""

from __future__ import annotations

import sys
from typing import Any

from . import _native

_WARNING = 30


def emit(target: str, level: int, message: str, fields: list[tuple[str, str]]) -> None:
    """Logs an event. The extension calls this, on any thread."""
    import logging

    logger = logging.getLogger(target.replace("::", "."))
    if logger.isEnabledFor(level):
        values = dict(fields)
        event = values.pop("event", "")
        text = " ".join(f"{name}={value}" for name, value in values.items())
        logger.log(level, "%s%s", message, f" ({text})" if text else "", extra={"event": event, "fields": values})


def _logger() -> Any:
    """The logger, unless nobody has imported `logging`, or another thread is about to."""
    get = getattr(sys.modules.get("logging"), "getLogger", None)
    return None if get is None else get("tenure")


def follow() -> None:
    """Passes the effective log level to the library."""
    logger = _logger()
    level = _WARNING if logger is None else logger.getEffectiveLevel()
    _native.set_log_level(max(1, min(level, 50)))


def debug(message: str, *arguments: object) -> None:
    """Logs a message of the package itself."""
    logger = _logger()
    if logger is not None:
        logger.debug(message, *arguments)


def exception(message: str, *arguments: object) -> None:
    """Logs the exception being handled."""
    import logging

    logging.getLogger("tenure").exception(message, *arguments)
