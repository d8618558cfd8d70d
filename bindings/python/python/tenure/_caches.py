"""Values that one caller computes for a whole fleet."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _fork, _functions, _native
from ._errors import InvalidError
from ._wait import Seconds, run, seconds, wait

Open = Callable[[], _native.Locks]
Dump = Callable[[Any], bytes]
Load = Callable[[bytes], Any]
Codec = Union[str, tuple[Dump, Load]]
Dumped = tuple[Optional[bytes], Optional[float]]


@dataclass(frozen=True)
class Absent:
    """Returned by a computation for a cache if there is no value. Nobody computes again for `ttl`."""

    ttl: Seconds


@dataclass(frozen=True)
class Uncached:
    """Returned by a computation for a cache to return a value that is not kept."""

    value: Any


def _dump_json(value: Any) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"codec json: {error}; use 'pickle' or a pair of functions") from error
    if json.loads(text) != value:
        raise InvalidError(
            f"codec json: would return {text[:60]} for {value!r:.60}; use other types, 'pickle' or a pair of functions"
        )
    return text.encode()


def _dump_pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def _load_pickle(value: bytes) -> Any:
    import pickle

    return pickle.loads(value)


def _dump_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidError(f"codec bytes: got {type(value).__name__}, expected bytes")
    return value


def _dump_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidError(f"codec text: got {type(value).__name__}, expected str")
    return value.encode()


_CODECS: dict[str, tuple[Dump, Load]] = {
    "json": (_dump_json, json.loads),
    "text": (_dump_text, bytes.decode),
    "bytes": (_dump_bytes, bytes),
    "pickle": (_dump_pickle, _load_pickle),
}


def _codec_of(codec: Codec) -> tuple[str, Dump, Load]:
    """The name that the store keeps beside the value, and the functions."""
    if isinstance(codec, str):
        if codec not in _CODECS:
            raise InvalidError(f"codec: got {codec!r}, expected {', '.join(_CODECS)} or a pair of functions")
        return (codec, *_CODECS[codec])
    pair: Any = codec
    if not isinstance(pair, tuple) or len(codec) != 2 or not all(map(callable, codec)):
        raise InvalidError(f"codec: got {codec!r}, expected a name or a pair of functions to and from bytes")
    for function in codec:
        _functions.blocking("a codec", function, "")
    return ("python", *codec)


class Cache:
    """A cached value: see `Locks.cache`. One caller in a fleet computes it, and the others wait for it."""

    def __init__(self, locks: Open, name: str, ttl: float, codec: Codec, options: Mapping[str, Any]) -> None:
        self.name = name
        """The name, without the prefix."""
        self.ttl = ttl
        """How many seconds a value is fresh."""
        self._locks = locks
        self._codec, self._dump, self._load = _codec_of(codec)
        self._options = options
        self._handle: Optional[_native.Cache] = None
        self._generation = -1
        self._opened()

    def _opened(self) -> _native.Cache:
        generation = _fork.generation
        if self._handle is None or self._generation != generation:
            self._handle = self._locks().cache(self.name).configured(**self._options)
            self._generation = generation
        return self._handle

    def _loaded(self, value: Optional[bytes]) -> Any:
        return None if value is None else self._load(value)

    def _dumped(self, value: Any) -> Dumped:
        if isinstance(value, Absent):
            return None, seconds(value.ttl, "ttl")
        if isinstance(value, Uncached):
            return self._bytes(value.value), None
        return self._bytes(value), self.ttl

    def _bytes(self, value: Any) -> bytes:
        dumped: Any = self._dump(value)
        if not isinstance(dumped, bytes):
            raise InvalidError(f"codec: got {type(dumped).__name__} of {self._dump}, expected bytes")
        return dumped

    def _blocking(self, op: _native.Op, compute: Callable[[], Any]) -> Any:
        return self._loaded(run(op, lambda: self._dumped(_functions.finished(compute, compute()))))

    async def _asking(self, op: _native.Op, compute: Callable[[], Awaitable[Any]]) -> Any:
        async def answer() -> Dumped:
            value = await _functions.coroutine(compute, compute())
            return self._dumped(_functions.finished(compute, value))

        return self._loaded(await wait(op, answer))

    def get(self) -> Any:
        """The stored value, fresh or stale; `None` if there is none. Never computes."""
        return self._loaded(run(self._opened().get(self._codec)))

    async def aget(self) -> Any:
        """Like `get`, in an event loop."""
        return self._loaded(await wait(self._opened().get(self._codec)))

    def get_or_compute(self, compute: Callable[[], Any]) -> Any:
        """The value, computed by `compute` if necessary. It may return `Absent`, and the value is then `None`, or
        `Uncached`."""
        _functions.blocking("a computation", compute, "aget_or_compute")
        return self._blocking(self._opened().compute(self._codec), compute)

    async def aget_or_compute(self, compute: Callable[[], Awaitable[Any]]) -> Any:
        """Like `get_or_compute`, in an event loop; `compute` is an async function."""
        _functions.awaitable("a computation", compute, "get_or_compute")
        return await self._asking(self._opened().compute(self._codec), compute)

    def refresh(self, compute: Callable[[], Any]) -> Any:
        """Computes and stores the value even if one is stored. `compute` may return `Absent` or `Uncached`, as for
        `get_or_compute`."""
        _functions.blocking("a computation", compute, "arefresh")
        return self._blocking(self._opened().refresh(self._codec), compute)

    async def arefresh(self, compute: Callable[[], Awaitable[Any]]) -> Any:
        """Like `refresh`, in an event loop; `compute` is an async function."""
        _functions.awaitable("a computation", compute, "refresh")
        return await self._asking(self._opened().refresh(self._codec), compute)

    def invalidate(self) -> None:
        """Discards the value; call it after the outdating commit. A computation in progress is not stored."""
        run(self._opened().invalidate())

    async def ainvalidate(self) -> None:
        """Like `invalidate`, in an event loop."""
        await wait(self._opened().invalidate())

    def __repr__(self) -> str:
        return f"<tenure.Cache {self.name!r} ttl={self.ttl:g} s>"


class Fill:
    """A cache of the program's own, which one caller in a fleet fills: see `Locks.fill`."""

    def __init__(self, locks: Open, name: str, wait: float, overdue: str, outage: str) -> None:
        self.name = name
        """The name, without the prefix."""
        self._locks = locks
        self._arguments = (seconds(wait), overdue, outage)
        self._opened()

    def _opened(self) -> _native.Fill:
        return self._locks().fill(self.name, *self._arguments)

    def run(self, get: Callable[[], Any], compute: Callable[[Optional[int]], Any]) -> Any:
        """Returns what `get` finds or, if that is `None`, what `compute` returns, which must put the value into
        the cache itself. It gets the fencing token of the lock, or `None` without the lock: after the wait, or in
        an outage."""
        for function in (get, compute):
            _functions.blocking("a function of a cache", function, "arun")
        op = self._opened().run()

        def answer() -> Any:
            what, fence = op.question()
            function, value = (get, get()) if what == "get" else (compute, compute(fence))
            return _functions.finished(function, value)

        return run(op, answer)

    async def arun(
        self, get: Callable[[], Awaitable[Any]], compute: Callable[[Optional[int]], Awaitable[Any]]
    ) -> Any:
        """Like `run`, in an event loop, for async functions."""
        for function in (get, compute):
            _functions.awaitable("a function of a cache", function, "run")
        op = self._opened().run()

        async def answer() -> Any:
            what, fence = op.question()
            if what == "get":
                return _functions.finished(get, await _functions.coroutine(get, get()))
            return _functions.finished(compute, await _functions.coroutine(compute, compute(fence)))

        return await wait(op, answer)

    def __repr__(self) -> str:
        return f"<tenure.Fill {self.name!r}>"
