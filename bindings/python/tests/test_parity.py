"""The package has what the library has, by the same names or by those of docs/parity.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import tenure
from tenure import testing

PACKAGE = Path(__file__).resolve().parents[1]
API = PACKAGE.parents[1] / "crates/tenure/api.txt"
PAGE = PACKAGE / "docs/parity.md"
ROW = re.compile(r"^\| `([*\w:]+)` \| (.*) \|$", re.MULTILINE)
METHOD = re.compile(r"    pub (?:async |const )*fn (\w+)")

# Types of the library whose names differ, and those of which the package has nothing by that name.
CLASSES = {
    "Lost": tenure.Loss, "ReadGuard": tenure.RwGuard, "WriteGuard": tenure.RwGuard, "UpgradeableGuard": tenure.RwGuard,
    "testing::Control": testing.Control, "metrics::Histogram": tenure.Histogram, "metrics::LockMetrics": tenure.LockMetrics,
    "metrics::Snapshot": tenure.Metrics, "Owner": tenure.Holder,
}  # fmt: skip


def of_slices(name: str, method: str) -> bool:
    """Whether it is a method of all slices, to which `MultiGuard` dereferences."""
    own = {"release", "run", "run_future", "run_recoverable", "verify", "into_guards", "is_held", "lost", "remaining"}
    return name == "MultiGuard" and method not in own


def library() -> dict[str, set[str]]:
    """The methods and fields of each type, and the variants of each enum."""
    members: dict[str, set[str]] = {}
    for line in API.read_text().splitlines():
        if declared := re.match(r"(struct|enum|trait|fn|constant) ([\w:]+): (.*)$", line):
            kind, name, text = declared.groups()
            members[name] = set()
            if kind == "struct":
                members[name] |= set(re.findall(r"pub (\w+):", text))
        elif (method := METHOD.match(line)) and not of_slices(name, method[1]):
            members[name].add(method[1])
    return members


def own(name: str) -> object:
    return CLASSES.get(name, getattr(tenure, name.rpartition("::")[2], None))


def has(thing: object, member: str) -> bool:
    """Whether a class has a method, an annotated field, or an attribute that its constructor sets."""
    assert isinstance(thing, type)
    for of in thing.__mro__:
        if member in vars(of) or member in getattr(of, "__annotations__", {}):
            return True
        is_ours = of.__module__.startswith("tenure.") and of.__module__ != "tenure._native"
        if is_ours and f"self.{member} = " in inspect.getsource(of):
            return True
    return False


def test_the_page_names_every_difference() -> None:
    rows = dict(ROW.findall(PAGE.read_text()))
    missing, needed = [], set()
    for name, members in library().items():
        thing = own(name)
        if thing is None:
            needed.add(name)
            missing += [] if name in rows else [name]
            continue
        for member in sorted(members):
            if not has(thing, member):
                needed |= {f"{name}::{member}", f"{name}::*", f"*::{member}"} & rows.keys()
                if not {f"{name}::{member}", f"*::{member}"} & rows.keys():
                    missing.append(f"{name}::{member}")
    assert not missing, f"{PAGE.name} lacks {missing}"
    known = {f"{name}::{member}" for name, members in library().items() for member in members} | library().keys()
    unneeded = (rows.keys() & known) - needed
    assert not unneeded, f"{PAGE.name} has rows that nothing needs: {unneeded}"


def test_the_page_names_what_the_package_has() -> None:
    for row, text in ROW.findall(PAGE.read_text()):
        for first, second in re.findall(r"`(?:tenure\.)?([A-Z]\w+)(?:\.(\w+))?", text):
            thing = getattr(tenure, first, None) or getattr(testing, first, None)
            assert thing is not None or first in ("None", "False"), (row, first)
            assert not second or has(thing, second), (row, first, second)
        for function in re.findall(r"`tenure\.([a-z]\w+)`", text):
            assert hasattr(tenure, function), (row, function)


def test_every_blocking_method_has_an_async_twin() -> None:
    alone = {"open", "wait", "cached", "cache", "fill", "locked"}
    for name in ("Locks", "Mutex", "ReentrantMutex", "Semaphore", "Guard", "RwGuard", "Term", "Turn", "Cache", "OncePer",
                 "Election", "Observer", "Fill"):  # fmt: skip
        thing = getattr(tenure, name)
        for member in dir(thing):
            if member.startswith("a") and hasattr(thing, member[1:]) and member not in alone:
                assert callable(getattr(thing, member[1:])), (name, member)
    for thing, member in [(tenure.Locks, "request_stop"), (tenure.Election, "lead"), (tenure.Observer, "try_next")]:
        assert hasattr(thing, member) and hasattr(thing, f"a{member}")
