"""Reports of stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Generic, Optional, TypeVar

T = TypeVar("T")


def _time(seconds: Optional[float]) -> Optional[datetime]:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


@dataclass(frozen=True)
class Holder:
    """A holder of a lock, or a waiter."""

    owner: Optional[str]
    """`user/label@host:pid/id`; `None` for another program, which `value` shows."""
    user: Optional[str]
    host: Optional[str]
    pid: Optional[int]
    label: Optional[str]
    value: bytes = field(repr=False)
    fence: int
    """The fencing token; 0 if there is none."""
    remaining: Optional[float]
    """Seconds until the lease ends; `None` if another program set no expiry."""
    since: Optional[datetime]
    """When the hold or the wait began, for display."""
    share: str
    """`whole`, `holds`, `reader`, `upgradeable`, `writer` or `permits`."""
    count: int
    """The number of holds or permits."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Holder:
        all: dict[str, Any] = {**values, "since": _time(values["since"])}
        return cls(**all)


@dataclass(frozen=True)
class Status:
    """The state of a lock at the time the store answered. Acquire the lock rather than decide by it."""

    name: str
    kind: str
    permits: Optional[int]
    """The number of permits of a semaphore."""
    holders: list[Holder]
    waiters: list[Holder]
    """In the order of the queue, if this kind of lock has one."""
    unlisted: int
    """The number of holders and waiters beyond the first thousand."""
    waiting: Optional[int]
    """The number of waiters, or of processes that wait if this kind of lock has no queue; ``None`` if unknown."""
    foreign: Optional[str]
    """What another program stored under the name; `None` for a lock of tenure."""

    @classmethod
    def of(cls, values: Optional[Mapping[str, Any]]) -> Optional[Status]:
        if values is None:
            return None
        all: dict[str, Any] = dict(values)
        for key in ("holders", "waiters"):
            all[key] = [Holder.of(one) for one in all[key]]
        return cls(**all)


@dataclass(frozen=True)
class StopRequest:
    """A request to stop."""

    by: str
    """The owner that made the request."""
    reason: str
    """For people; may be empty."""

    @classmethod
    def of(cls, values: Optional[Mapping[str, str]]) -> Optional[StopRequest]:
        return None if values is None else cls(**values)


@dataclass(frozen=True)
class ForcedRelease:
    """What a forced release of one grant or owner did."""

    kind: str
    """`free`, `ended`, or `other` if somebody else holds the lock, which is left alone."""
    status: Optional[Status] = None
    """The state of the lock before."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ForcedRelease:
        return cls(values["kind"], Status.of(values["status"]))


@dataclass(frozen=True)
class Leader:
    """The leader of an election."""

    payload: str
    fence: int
    owner: str


@dataclass(frozen=True)
class Change:
    """A change of leadership."""

    kind: str
    """`elected`, `updated`, `resigned`, `missed` or `rewritten`."""
    leader: Optional[Leader] = None
    missed: int = 0
    """For `missed`, the number of changes that are no longer known."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Change:
        leader = values["leader"]
        return cls(values["kind"], None if leader is None else Leader(**leader), values["missed"])


@dataclass(frozen=True)
class _Run:
    begun: datetime
    ended: Optional[datetime]
    """`None` while it runs, and if it was lost."""
    fence: int
    outcome: str
    """`running`, `done`, `failed` or `lost`."""
    why: Optional[str]
    """The reason of a failure: of an earlier run, its first line."""
    code: Optional[int]
    """The exit code of its command, under `tenure run`."""


@dataclass(frozen=True)
class LastRun(_Run):
    """The most recent run of a job."""

    window: tuple[datetime, datetime]
    owner: str
    remaining: Optional[float]
    """While it runs, the seconds until its lease ends."""
    succeeded: Optional[datetime]
    """When the job last succeeded: the end of this run or of an earlier one."""
    is_open: bool
    """Whether its failure has opened the window again, so that the next to ask runs the job."""

    @classmethod
    def of(cls, values: Optional[Mapping[str, Any]]) -> Optional[LastRun]:
        if values is None:
            return None
        start, end = (datetime.fromtimestamp(time, timezone.utc) for time in values["window"])
        times = {key: _time(values[key]) for key in ("begun", "ended", "succeeded")}
        all: dict[str, Any] = {**values, **times, "window": (start, end)}
        return cls(**all)


@dataclass(frozen=True)
class PastRun(_Run):
    """One of the last runs of a job."""

    host: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PastRun:
        all: dict[str, Any] = {**values, "begun": _time(values["begun"]), "ended": _time(values["ended"])}
        return cls(**all)


@dataclass(frozen=True)
class JobStatus:
    """The state of a job at the time the store answered."""

    name: str
    schedule: Optional[str]
    """The schedule of its last run, if known."""
    last: LastRun
    runs: list[PastRun]
    """The last runs, newest first, at most ten. The first is `last`."""
    next: datetime
    """When it may run next; in the past if it is due."""
    overdue: Optional[float]
    """Seconds since a window began in which it has not run."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> JobStatus:
        last, next = LastRun.of(values["last"]), _time(values["next"])
        runs = [PastRun.of(run) for run in values["runs"]]
        all: dict[str, Any] = {**values, "last": last, "runs": runs, "next": next}
        return cls(**all)


@dataclass(frozen=True)
class ElectionStatus:
    """The state of an election at the time the store answered."""

    name: str
    leader: Optional[Leader]
    """`None` if nobody leads."""
    hold: Optional[Holder]
    """The hold of the leader, with its lease."""
    candidates: list[Holder]
    """Those that wait, in order."""
    unlisted: int
    """The number of candidates beyond the first thousand."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ElectionStatus:
        all: dict[str, Any] = dict(values)
        if all["leader"] is not None:
            all["leader"], all["hold"] = Leader(**all["leader"]), Holder.of(all["hold"])
        all["candidates"] = [Holder.of(one) for one in all["candidates"]]
        return cls(**all)


@dataclass(frozen=True)
class Run(Generic[T]):
    """The result of a job that runs once: true if it ran here."""

    ran: bool
    value: Optional[T] = None
    """What the job returned."""

    def __bool__(self) -> bool:
        return self.ran


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations in seconds."""

    count: int
    sum: float
    buckets: list[tuple[float, int]] = field(repr=False)
    """Cumulative: the number of durations up to each bound."""


@dataclass(frozen=True)
class LockMetrics:
    """The counters of one kind of lock in one group."""

    group: str
    kind: str
    acquired: int
    busy: int
    timed_out: int
    cancelled: int
    failed: int
    waiting: int
    handovers: int
    held: int
    resumed: int
    renewals: int
    failed_renewals: int
    losses: dict[str, int]
    wait: Histogram
    hold: Histogram
    uses: dict[tuple[str, str], int]
    """Outcomes of caches, jobs and elections, such as `("cache_fills", "filled")`."""
    fill: Histogram
    """Time to compute a value of a cache."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LockMetrics:
        all: dict[str, Any] = dict(values)
        for key in ("wait", "hold", "fill"):
            all[key] = Histogram(**all[key])
        return cls(**all)


@dataclass(frozen=True)
class Metrics:
    """The metrics of this process and one store."""

    store: str
    total: LockMetrics
    locks: list[LockMetrics]
    requests: dict[tuple[str, str], int]
    """Requests to the store, by verb and result."""
    reconnects: int
    prometheus: str = field(repr=False)
    """The metrics as text for Prometheus."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Metrics:
        locks = [LockMetrics.of(one) for one in values["locks"]]
        all: dict[str, Any] = {**values, "total": LockMetrics.of(values["total"]), "locks": locks}
        return cls(**all)
