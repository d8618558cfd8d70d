"""Uses of locks: jobs that run once, elections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from . import _fork, _functions, _native
from ._errors import InvalidError
from ._guards import Term, Turn
from ._values import Change, LastRun, Leader, Run
from ._wait import granted, run, seconds, wait

if TYPE_CHECKING:
    import threading

T = TypeVar("T")

Open = Callable[[], _native.Locks]


Window = Callable[[datetime], tuple[datetime, datetime]]
Zone = Union[str, tzinfo]


def _zone_name(zone: Optional[Zone]) -> Optional[str]:
    """The name of a zone, as in `Europe/Berlin`."""
    if zone is None or isinstance(zone, str):
        return zone
    name = "UTC" if zone is timezone.utc else getattr(zone, "key", getattr(zone, "zone", None))
    if not isinstance(name, str):
        raise InvalidError(f"zone: got {zone!r}, expected a name such as Europe/Berlin, or a zoneinfo.ZoneInfo")
    return name


def _seconds_of(at: At) -> float:
    if not isinstance(at, time):
        return seconds(at)
    return (datetime.combine(datetime.min, at.replace(tzinfo=None)) - datetime.min).total_seconds()


@dataclass(frozen=True)
class Schedule:
    """The windows of a job by the calendar: see `cron`, `daily`, `weekly` and `monthly`."""

    kind: str
    at: Union[str, float]
    zone: Optional[str] = None


def cron(expression: str, zone: Optional[Zone] = None) -> Schedule:
    """The period of a job whose windows begin at the times of a cron expression: minute, hour, day of the month,
    month and weekday, with names, lists, ranges, steps and `L`, or `@daily` and its like. Times are UTC, or of a
    `zone`, by name or as a `zoneinfo.ZoneInfo`.

    >>> import tenure
    >>> report = tenure.connect("memory:").once_per("report", tenure.cron("30 2 * * MON-FRI", zone="Europe/Berlin"))
    """
    return Schedule("cron", expression, _zone_name(zone))


def _at(kind: str, at: At, zone: Optional[Zone]) -> Schedule:
    own = at.tzinfo if isinstance(at, time) else None
    if own is not None and zone is not None:
        raise InvalidError(f"{kind}: got a time in {own} and the zone {zone}, expected one zone")
    return Schedule(kind, _seconds_of(at), _zone_name(own if zone is None else zone))


def daily(at: At = 0.0, zone: Optional[Zone] = None) -> Schedule:
    """The period of a job that runs once a day, from this time after midnight on: in UTC, in a `zone`, or in that of
    a `datetime.time`.

    >>> import tenure
    >>> job = tenure.connect("memory:").once_per("report", tenure.daily(at=2 * 3600, zone="Asia/Tokyo"))
    """
    return _at("daily", at, zone)


def weekly(at: At = 0.0, zone: Optional[Zone] = None) -> Schedule:
    """The same once a week, from this time after midnight of Monday on."""
    return _at("weekly", at, zone)


def monthly(at: At = 0.0, zone: Optional[Zone] = None) -> Schedule:
    """The same once a month, from this time after midnight of its first day on."""
    return _at("monthly", at, zone)


At = Union[float, timedelta, time]
Period = Union[float, timedelta, Schedule, Window]


def _native_period(period: Period) -> Any:
    if isinstance(period, Schedule):
        return (period.kind, period.at, period.zone)
    if isinstance(period, (int, float, timedelta)):
        return seconds(period)
    if not callable(period):
        raise InvalidError(f"period: got {period!r}, expected seconds, a timedelta, daily(at), cron(…) or a function")
    _functions.blocking("a function of windows", period, "")

    def window(now: float) -> tuple[float, float]:
        start, end = period(datetime.fromtimestamp(now, timezone.utc))
        return aware("window", start).timestamp(), aware("window", end).timestamp()

    return window


def aware(what: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise InvalidError(f"{what}: got {time!r} without a time zone; use datetime.timezone.utc or zoneinfo")
    return time


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
        if self._handle is None or self._generation != _fork.generation:
            self._handle = self._locks().once_per(self.name, *self._arguments)
            self._generation = _fork.generation
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
        call = _functions.with_turn(job, args, kwargs)
        turn = self.try_begin()
        if turn is None:
            return Run(False)
        with turn:
            return Run(True, _functions.finished(job, call(turn)))

    async def arun(self, job: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> Run[T]:
        """Like `run`, in an event loop, for an async function. It is cancelled if the lock is lost."""
        _functions.awaitable("a job", job, "run")
        call = _functions.with_turn(job, args, kwargs)
        turn = await self.atry_begin()
        if turn is None:
            return Run(False)
        async with turn:
            with turn.cancel_on_loss():
                value = await _functions.coroutine(job, call(turn))
                return Run(True, _functions.finished(job, value))

    def last(self) -> Optional[LastRun]:
        """The most recent run."""
        return LastRun.of(run(self._opened().last()))

    async def alast(self) -> Optional[LastRun]:
        """Like `last`, in an event loop."""
        return LastRun.of(await wait(self._opened().last()))

    def request_stop(self, reason: str = "") -> Optional[LastRun]:
        """Asks the runner to stop, and returns its run; `None` if the job is not running. See
        `Turn.stop_requested`."""
        return LastRun.of(run(self._opened().request_stop(reason)))

    async def arequest_stop(self, reason: str = "") -> Optional[LastRun]:
        """Like `request_stop`, in an event loop."""
        return LastRun.of(await wait(self._opened().request_stop(reason)))

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

    def try_next(self) -> Optional[Change]:
        """The next change if there is one already."""
        change = run(self._native.try_next())
        return None if change is None else Change.of(change)

    async def atry_next(self) -> Optional[Change]:
        """Like `try_next`, in an event loop."""
        change = await wait(self._native.try_next())
        return None if change is None else Change.of(change)

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
        if self._handle is None or self._generation != _fork.generation:
            self._handle = self._locks().election(self.name, self.payload)
            self._generation = _fork.generation
        return self._handle

    def campaign(self) -> Term:
        """Waits until this process leads."""
        term: Term = granted(self._opened().campaign(), Term)
        return term

    async def acampaign(self) -> Term:
        """Like `campaign`, in an event loop."""
        return Term(await wait(self._opened().campaign()))

    def lead(self, work: Callable[[Term], T]) -> T:
        """Waits until this process leads, calls `work` with the term, and resigns. Raises the `LostError` of a term
        that is lost meanwhile.

        >>> import tenure
        >>> tenure.connect("memory:").election("scheduler").lead(lambda term: term.is_held())
        True
        """
        _functions.blocking("the work of a leader", work, "alead")
        with self.campaign() as term:
            value: T = _functions.finished(work, work(term))
            return value

    async def alead(self, work: Callable[[Term], Awaitable[T]]) -> T:
        """Like `lead`, in an event loop, for an async function. It is cancelled if the term is lost."""
        _functions.awaitable("the work of a leader", work, "lead")
        async with await self.acampaign() as term:
            with term.cancel_on_loss():
                value: T = _functions.finished(work, await _functions.coroutine(work, work(term)))
                return value

    def lead_forever(self, work: Callable[[Term], object], stop: Optional[threading.Event] = None) -> None:
        """Leads again and again, until `stop` is set or Ctrl-C. `work` should return when `stop` is set or
        `Term.is_held` turns false. Once it returns or raises, this process resigns, and is a candidate again after a
        second, or up to a minute if its terms are short; after a lost term at once. Errors are logged, and a store
        that is away is waited for."""
        import threading

        from ._leaders import lead

        lead(self, work, threading.Event() if stop is None else stop)

    async def alead_forever(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Like `lead_forever`, in an event loop, for an async function, until the task is cancelled. The function is
        cancelled if the term is lost."""
        from ._leaders import alead

        await alead(self, work)

    def request_stop(self, reason: str = "") -> Optional[Leader]:
        """Asks the leader to stop, and returns it; `None` if nobody leads. See `Term.stop_requested`."""
        leader = run(self._opened().request_stop(reason))
        return None if leader is None else Leader(**leader)

    async def arequest_stop(self, reason: str = "") -> Optional[Leader]:
        """Like `request_stop`, in an event loop."""
        leader = await wait(self._opened().request_stop(reason))
        return None if leader is None else Leader(**leader)

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
