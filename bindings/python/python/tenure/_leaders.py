"""Leads an election again and again: see `Election.lead_forever`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Optional

from . import _functions, _log, _native, _wait
from ._errors import LostError
from ._guards import Term

if TYPE_CHECKING:
    from ._uses import Election

_POLL = 0.2
"""How often a candidate looks whether it is told to stop."""


def lead(election: Election, work: Callable[[Term], object], stop: threading.Event) -> None:
    """Leads until `stop` is set."""
    _functions.blocking("the work of a leader", work, "alead_forever")
    candidacy, end = election._opened().candidacy(), _native.Stop()

    def block(op: _native.Op) -> bool:
        while not stop.is_set():
            if _wait.block(op, _POLL):
                return True
        end.set()
        return _wait.block(op)

    while True:
        term: Optional[Term] = _native.granted(candidacy.campaign_until(end), block, Term)
        if term is None:
            return
        try:
            with term:
                _functions.finished(work, work(term))
        except LostError:
            pass  # the library has logged it
        except Exception:
            _log.exception("leader of %s failed", election.name)


async def alead(election: Election, work: Callable[[Term], Awaitable[object]]) -> None:
    """Leads until the task is cancelled."""
    _functions.awaitable("the work of a leader", work, "lead_forever")
    candidacy, never = election._opened().candidacy(), _native.Stop()
    while True:
        term = Term(await _wait.wait(candidacy.campaign_until(never)))
        try:
            async with term:
                with term.cancel_on_loss():
                    _functions.finished(work, await _functions.coroutine(work, work(term)))
        except LostError:
            pass  # the library has logged it
        except Exception:
            _log.exception("leader of %s failed", election.name)
