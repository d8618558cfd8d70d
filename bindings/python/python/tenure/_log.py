"""Events of the library, through `logging`."""

from __future__ import annotations

import logging

from . import _native

logger = logging.getLogger("tenure")


def emit(target: str, level: int, message: str, fields: list[tuple[str, str]]) -> None:
    """Logs an event. The extension calls this, on any thread."""
    to = logging.getLogger(target.replace("::", "."))
    if to.isEnabledFor(level):
        values = dict(fields)
        event = values.pop("event", "")
        text = " ".join(f"{name}={value}" for name, value in values.items())
        to.log(level, "%s%s", message, f" ({text})" if text else "", extra={"event": event, "fields": values})


def follow() -> None:
    """Tells the library from which level on events are wanted."""
    _native.set_log_level(max(1, min(logger.getEffectiveLevel(), 50)))
