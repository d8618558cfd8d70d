"""Leads an election again and again: see `Election.lead_forever`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Optional

from . import _functions, _log, _native, _wait
from ._errors import LostError, RefusedError, UnknownError, UnreachableError
from ._guards import Term

if TYPE_CHECKING:
    from ._uses import Election

_LONG = 60.0
"""A term that lasted this long ends the backoff."""
_TRANSIENT = (UnreachableError, UnknownError, RefusedError)
_POLL = 0.2
"""How often a candidate looks whether it is told to stop."""


class _StopSetError(Exception):
    """Ends a campaign."""


class _Backoff:
    """The pause before the next campaign: a second, doubled up to a minute while terms are short."""

    def __init__(self) -> None:
        self._attempt = 0
        self._begun = 0.0

    def elected(self) -> None:
        self._begun = time.monotonic()

    def pause(self) -> float:
        was_long = self._begun > 0 and time.monotonic() - self._begun >= _LONG
        self._attempt, self._begun = 0 if was_long else self._attempt + 1, 0.0
        return random.uniform(0.75, 1.25) * min(2.0 ** max(self._attempt - 1, 0), 60.0)


def _campaign(election: Election, stop: threading.Event) -> Optional[Term]:
    """Waits until this process leads; `None` once `stop` is set."""

    def block(op: _native.Op) -> bool:
        while not _wait.block(op, _POLL):
            if stop.is_set():
                raise _StopSetError
        return True

    try:
        term: Term = _native.granted(election._opened().campaign(), block, Term)
        return term
    except _StopSetError:
        return None


def lead(election: Election, work: Callable[[Term], object], stop: threading.Event) -> None:
    """Leads until `stop` is set."""
    _functions.blocking("the work of a leader", work, "alead_forever")
    backoff = _Backoff()
    try:
        election.leader()  # a store that refuses from the start needs its user
    except _TRANSIENT[:2]:
        pass
    while not stop.is_set():
        try:
            term = _campaign(election, stop)
        except _TRANSIENT:
            _log.exception("cannot lead %s", election.name)
        else:
            if term is None:
                return
            backoff.elected()
            try:
                with term:
                    _functions.finished(work, work(term))
            except LostError:
                continue  # the library has logged it
            except Exception:
                _log.exception("leader of %s failed", election.name)
        stop.wait(backoff.pause())


async def alead(election: Election, work: Callable[[Term], Awaitable[object]]) -> None:
    """Leads until the task is cancelled."""
    _functions.awaitable("the work of a leader", work, "lead_forever")
    backoff = _Backoff()
    try:
        await election.aleader()
    except _TRANSIENT[:2]:
        pass
    while True:
        try:
            term = await election.acampaign()
        except _TRANSIENT:
            _log.exception("cannot lead %s", election.name)
        else:
            backoff.elected()
            try:
                async with term:
                    with term.cancel_on_loss():
                        _functions.finished(work, await _functions.coroutine(work, work(term)))
            except LostError:
                continue  # the library has logged it
            except Exception:
                _log.exception("leader of %s failed", election.name)
        await _sleep(backoff.pause())


async def _sleep(seconds: float) -> None:
    trio = _wait.trio_here()
    if trio is not None:
        await trio.sleep(seconds)
        return
    import asyncio

    await asyncio.sleep(seconds)
