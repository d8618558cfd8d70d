"""Functions that run under a lock, or whose results are cached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Optional, TypeVar, cast

from ._errors import InvalidError
from ._functions import ASYNC, ASYNC_GENERATOR, GENERATOR, Template, finished, kind_of, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from typing_extensions import ParamSpec, Protocol, overload

    from ._caches import Cache
    from ._guards import Guard
    from ._locks import Lock

    P = ParamSpec("P")
    T = TypeVar("T")
    R = TypeVar("R", covariant=True)

    class Cached(Protocol[P, R]):
        """A function whose results are cached."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        def __get__(self, instance: object, owner: object = None) -> Callable[..., R]: ...

        def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Computes and stores the value for these arguments even if one is stored."""
            ...

        def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
            """Discards the value for these arguments."""

    class AsyncCached(Protocol[P, R]):
        """An async function whose results are cached."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

        def __get__(self, instance: object, owner: object = None) -> Callable[..., Coroutine[Any, Any, R]]: ...

        def refresh(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            """Computes and stores the value for these arguments even if one is stored."""
            ...

        def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
            """Discards the value for these arguments."""
            ...

    class Caching(Protocol):
        """The decorator of `Locks.cached`."""

        @overload  # the second also matches, less exactly
        def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
            self, function: Callable[P, Coroutine[Any, Any, T]], /
        ) -> AsyncCached[P, T]: ...
        @overload
        def __call__(self, function: Callable[P, T], /) -> Cached[P, T]: ...


F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Locking:
    """What `Locks.locked` is to decorate with."""

    lock_of: Callable[[str], Lock[Guard]]
    name: str
    guard: Optional[str]
    is_patient: bool
    timeout: Optional[float]
    skips: bool

    def decorate(self, function: F) -> F:
        wrap = _WRAPPERS.get(kind_of(function), _plain)
        of = _Locked(function, self)
        wrapper = wrap(of)
        of.template.hide_guard(wrapper)
        return cast(F, wrapper)


class _Locked:
    """A function and the lock under which it runs."""

    def __init__(self, function: Callable[..., Any], by: Locking) -> None:
        self.function = function
        self.by = by
        self.template = Template(by.name, function, by.guard)

    def _or_busy(self, lock: Lock[Guard], held: Optional[Guard]) -> Optional[Guard]:
        if held is None and not self.by.skips:
            raise lock.busy(self.by.timeout)
        return held

    def acquired(self, args: Any, kwargs: Any) -> Optional[Guard]:
        """The guard; `None` if the function is to be skipped."""
        lock = self.by.lock_of(self.template.filled(args, kwargs))
        return self._or_busy(lock, lock.lock() if self.by.is_patient else lock.try_lock(self.by.timeout))

    async def aacquired(self, args: Any, kwargs: Any) -> Optional[Guard]:
        lock = self.by.lock_of(self.template.filled(args, kwargs))
        return self._or_busy(lock, await (lock.alock() if self.by.is_patient else lock.atry_lock(self.by.timeout)))

    def call(self, held: Guard, args: Any, kwargs: Any) -> Any:
        inserted = self.template.inserted
        return self.function(*args, **kwargs) if inserted is None else inserted.bound(args, kwargs)(held)


def _plain(of: _Locked) -> Callable[..., Any]:
    @wraps(of.function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        held = of.acquired(args, kwargs)
        if held is None:
            return None
        with held:
            return finished(of.function, of.call(held, args, kwargs))

    return wrapper


def _async(of: _Locked) -> Callable[..., Any]:
    @wraps(of.function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        held = await of.aacquired(args, kwargs)
        if held is None:
            return None
        async with held:
            with held.cancel_on_loss():
                return finished(of.function, await of.call(held, args, kwargs))

    return wrapper


def _generator(of: _Locked) -> Callable[..., Any]:
    @wraps(of.function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        held = of.acquired(args, kwargs)
        if held is None:
            return None
        with held:
            inner: Generator[Any, Any, Any] = of.call(held, args, kwargs)
            return (yield from inner)

    return wrapper


def _async_generator(of: _Locked) -> Callable[..., Any]:
    @wraps(of.function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        held = await of.aacquired(args, kwargs)
        if held is None:
            return
        async with held:
            inner: AsyncGenerator[Any, Any] = of.call(held, args, kwargs)
            try:
                step = inner.__anext__()
                while True:
                    # Step by step, because each may run in another task.
                    with held.cancel_on_loss():
                        value = await step
                    try:
                        step = inner.asend((yield value))
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        step = inner.athrow(error)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return wrapper


_WRAPPERS = {ASYNC: _async, GENERATOR: _generator, ASYNC_GENERATOR: _async_generator}


def cached(cache_of: Callable[[str], Cache], name: str) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        kind = kind_of(function)
        if kind in (GENERATOR, ASYNC_GENERATOR):
            raise InvalidError(f"cannot cache {shown(function)}: its result is {kind}, expected a value")
        template = Template(name, function)

        def cache(args: Any, kwargs: Any) -> Cache:
            return cache_of(template.filled(args, kwargs))

        return (_async_cached if kind == ASYNC else _plain_cached)(function, cache)

    return decorate


def _plain_cached(function: Any, cache: Callable[[Any, Any], Cache]) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return cache(args, kwargs).get_or_compute(lambda: function(*args, **kwargs))

    def refresh(*args: Any, **kwargs: Any) -> Any:
        return cache(args, kwargs).refresh(lambda: function(*args, **kwargs))

    def invalidate(*args: Any, **kwargs: Any) -> None:
        cache(args, kwargs).invalidate()

    decorated: Any = wrapper
    decorated.refresh, decorated.invalidate = refresh, invalidate
    return decorated


def _async_cached(function: Any, cache: Callable[[Any, Any], Cache]) -> Any:
    @wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await cache(args, kwargs).aget_or_compute(lambda: function(*args, **kwargs))

    async def refresh(*args: Any, **kwargs: Any) -> Any:
        return await cache(args, kwargs).arefresh(lambda: function(*args, **kwargs))

    async def invalidate(*args: Any, **kwargs: Any) -> None:
        await cache(args, kwargs).ainvalidate()

    decorated: Any = wrapper
    decorated.refresh, decorated.invalidate = refresh, invalidate
    return decorated
