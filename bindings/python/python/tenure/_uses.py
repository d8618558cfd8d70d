"""Uses of locks: caches, jobs that run once, elections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Any, Optional, TypeVar, Union

from . import _fork, _functions, _native
from ._errors import InvalidError
from ._guards import Term, Turn
from ._values import Change, LastRun, Leader, Run
from ._wait import granted, run, run_with, seconds, wait, wait_with

T = TypeVar("T")

Open = Callable[[], _native.Locks]


@dataclass(frozen=True)
class Absent:
    """Returned by a computation for a cache if there is no value. Nobody computes again for `ttl` seconds."""

    ttl: float


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


_CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "json": (_dump_json, json.loads),
    "text": (str.encode, bytes.decode),
    "bytes": (bytes, bytes),
}


class Cache:
    """A cached value: see `Locks.cache`. One caller in a fleet computes it, and the others wait for it."""

    def __init__(self, locks: Open, name: str, ttl: float, codec: str, options: Mapping[str, Any]) -> None:
        if codec not in _CODECS:
            raise InvalidError(f"codec: got {codec!r}, expected json, text or bytes")
        self.name = name
        """The name, without the prefix."""
        self.ttl = ttl
        """How many seconds a value is fresh."""
        self._locks = locks
        self._codec = codec
        self._dump, self._load = _CODECS[codec]
        self._options = options
        self._handle: Optional[_native.Cache] = None
        self._generation = -1
        self._opened()

    def _opened(self) -> _native.Cache:
        if self._handle is None or self._generation != _fork.generation():
            self._handle = self._locks().cache(self.name).configured(**self._options)
            self._generation = _fork.generation()
        return self._handle

    def _loaded(self, value: Optional[bytes]) -> Any:
        return None if value is None else self._load(value)

    def _dumped(self, value: Any) -> tuple[Optional[bytes], float]:
        if isinstance(value, Absent):
            return None, value.ttl
        return self._dump(value), self.ttl

    def get(self) -> Any:
        """The stored value, fresh or stale; `None` if there is none. Never computes."""
        return self._loaded(run(self._opened().get(self._codec)))

    async def aget(self) -> Any:
        """Like `get`, in an event loop."""
        return self._loaded(await wait(self._opened().get(self._codec)))

    def get_or_compute(self, compute: Callable[[], Any]) -> Any:
        """The value, computed by `compute` if necessary. It may return `Absent`; the value is then `None`."""
        _functions.blocking("a computation", compute, "aget_or_compute")
        op = self._opened().compute(self._codec)
        return self._loaded(run_with(op, lambda: self._dumped(_functions.finished(compute, compute()))))

    async def aget_or_compute(self, compute: Callable[[], Awaitable[Any]]) -> Any:
        """Like `get_or_compute`, in an event loop; `compute` is an async function."""
        _functions.awaitable("a computation", compute, "get_or_compute")
        return self._loaded(await wait_with(self._opened().compute(self._codec), self._answer(compute)))

    def refresh(self, compute: Callable[[], Any]) -> Any:
        """Computes and stores the value even if one is stored."""
        _functions.blocking("a computation", compute, "arefresh")
        op = self._opened().refresh(self._codec, self.ttl)
        return self._loaded(run_with(op, lambda: self._dumped(_functions.finished(compute, compute()))))

    async def arefresh(self, compute: Callable[[], Awaitable[Any]]) -> Any:
        """Like `refresh`, in an event loop; `compute` is an async function."""
        _functions.awaitable("a computation", compute, "refresh")
        op = self._opened().refresh(self._codec, self.ttl)
        return self._loaded(await wait_with(op, self._answer(compute)))

    def invalidate(self) -> None:
        """Discards the value; call it after the outdating commit. A computation in progress is not stored."""
        run(self._opened().invalidate())

    async def ainvalidate(self) -> None:
        """Like `invalidate`, in an event loop."""
        await wait(self._opened().invalidate())

    def _answer(self, compute: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[tuple[Optional[bytes], float]]]:
        async def answer() -> tuple[Optional[bytes], float]:
            value = await _functions.coroutine(compute, compute())
            return self._dumped(_functions.finished(compute, value))

        return answer

    def __repr__(self) -> str:
        return f"<tenure.Cache {self.name!r} ttl={self.ttl:g} s>"


Window = Callable[[datetime], tuple[datetime, datetime]]


@dataclass(frozen=True)
class daily:
    """The period of a job that runs once a day, from this time after midnight UTC on.

    >>> import tenure
    >>> job = tenure.connect("memory:").once_per("report", tenure.daily(at=2 * 3600))
    """

    at: Union[float, timedelta, time] = 0.0

    def seconds(self) -> float:
        """Seconds after midnight."""
        if not isinstance(self.at, time):
            return seconds(self.at)
        if self.at.tzinfo not in (None, timezone.utc):
            raise InvalidError(f"daily: got a time in {self.at.tzinfo}, expected UTC; a function can compute the windows")
        since = datetime.combine(datetime.min, self.at.replace(tzinfo=None)) - datetime.min
        return since.total_seconds()


Period = Union[float, timedelta, daily, Window]


def _native_period(period: Period) -> Any:
    if isinstance(period, daily):
        return ("daily", period.seconds())
    if isinstance(period, (int, float, timedelta)):
        return seconds(period)
    if not callable(period):
        raise InvalidError(f"period: got {period!r}, expected seconds, a timedelta, daily(at) or a function")
    _functions.blocking("a function of windows", period, "")

    def window(now: float) -> tuple[float, float]:
        start, end = period(datetime.fromtimestamp(now, timezone.utc))
        for time in (start, end):
            if time.tzinfo is None:
                raise InvalidError(f"window: got {time!r} without a time zone; use datetime.timezone.utc or zoneinfo")
        return start.timestamp(), end.timestamp()

    return window


class OncePer:
    """A job that runs at most once in each window of a period: see `Locks.once_per`. The store's clock decides,
    and the store records that the job ran."""

    def __init__(
        self, locks: Open, name: str, period: Period, open_for: Optional[float], reopens_on: str, again: bool
    ) -> None:
        self.name = name
        """The name, without the prefix."""
        self._locks = locks
        self._arguments = (_native_period(period), open_for, reopens_on, again)
        self._handle: Optional[_native.OncePer] = None
        self._generation = -1
        self._opened()

    def _opened(self) -> _native.OncePer:
        if self._handle is None or self._generation != _fork.generation():
            self._handle = self._locks().once_per(self.name, *self._arguments)
            self._generation = _fork.generation()
        return self._handle

    def try_begin(self) -> Optional[Turn]:
        """Begins a run unless there has been one in this window. The run succeeds at the end of the turn's
        `with` block, and fails with an exception.

        >>> import tenure
        >>> report = tenure.connect("memory:").once_per("report", 3600)
        >>> if turn := report.try_begin():
        ...     with turn:
        ...         print("the work")
        the work
        """
        turn: Optional[Turn] = granted(self._opened().begin(), Turn)
        return turn

    async def atry_begin(self) -> Optional[Turn]:
        """Like `try_begin`, in an event loop."""
        hold = await wait(self._opened().begin())
        return None if hold is None else Turn(hold)

    def run(self, job: Callable[..., T], *args: Any, **kwargs: Any) -> Run[T]:
        """Runs the job unless it has run in this window. The result is true if it ran here. If the job has a
        parameter `turn`, it gets the `Turn`.

        >>> import tenure
        >>> report = tenure.connect("memory:").once_per("report", 3600)
        >>> report.run(lambda turn: turn.is_held()).value
        True
        """
        _functions.blocking("a job", job, "arun")
        takes_turn = _functions.takes(job, "turn", kwargs)
        turn = self.try_begin()
        if turn is None:
            return Run(False)
        with turn:
            given = {**kwargs, "turn": turn} if takes_turn else kwargs
            return Run(True, _functions.finished(job, job(*args, **given)))

    async def arun(self, job: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> Run[T]:
        """Like `run`, in an event loop, for an async function. It is cancelled if the lock is lost."""
        _functions.awaitable("a job", job, "run")
        takes_turn = _functions.takes(job, "turn", kwargs)
        turn = await self.atry_begin()
        if turn is None:
            return Run(False)
        async with turn:
            with turn.cancel_on_loss():
                given = {**kwargs, "turn": turn} if takes_turn else kwargs
                value = await _functions.coroutine(job, job(*args, **given))
                return Run(True, _functions.finished(job, value))

    def last(self) -> Optional[LastRun]:
        """The most recent run."""
        return LastRun.of(run(self._opened().last()))

    async def alast(self) -> Optional[LastRun]:
        """Like `last`, in an event loop."""
        return LastRun.of(await wait(self._opened().last()))

    def reset(self) -> None:
        """Forgets the most recent run, so that the job may run again in this window."""
        run(self._opened().reset())

    async def areset(self) -> None:
        """Like `reset`, in an event loop."""
        await wait(self._opened().reset())

    def __repr__(self) -> str:
        return f"<tenure.OncePer {self.name!r}>"


class Observer:
    """The changes of an election: an iterator, and an async iterator. The first change is the leader at that
    time, if any."""

    def __init__(self, native: _native.Changes) -> None:
        self._native = native

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        return Change.of(run(self._native.next()))

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        return Change.of(await wait(self._native.next()))


class Election:
    """An election of one leader: see `Locks.election`. Its lease has a grace, so that a leader stops before the
    next one begins."""

    def __init__(self, locks: Open, name: str, payload: str) -> None:
        self.name = name
        """The name, without the prefix."""
        self.payload = payload
        """The payload of a leader elected here."""
        self._locks = locks
        self._handle: Optional[_native.Election] = None
        self._generation = -1
        self._opened()

    def _opened(self) -> _native.Election:
        if self._handle is None or self._generation != _fork.generation():
            self._handle = self._locks().election(self.name, self.payload)
            self._generation = _fork.generation()
        return self._handle

    def campaign(self) -> Term:
        """Waits until this process leads."""
        term: Term = granted(self._opened().campaign(), Term)
        return term

    async def acampaign(self) -> Term:
        """Like `campaign`, in an event loop."""
        return Term(await wait(self._opened().campaign()))

    def leader(self) -> Optional[Leader]:
        """The leader, if there is one now."""
        leader = run(self._opened().leader())
        return None if leader is None else Leader(**leader)

    async def aleader(self) -> Optional[Leader]:
        """Like `leader`, in an event loop."""
        leader = await wait(self._opened().leader())
        return None if leader is None else Leader(**leader)

    def observe(self) -> Observer:
        """The changes of leadership from now on."""
        return Observer(self._opened().observe())

    def __repr__(self) -> str:
        return f"<tenure.Election {self.name!r}>"
