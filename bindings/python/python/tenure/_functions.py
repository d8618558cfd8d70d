"""What kind of function the package was given: whether it waits in an event loop, and when its body runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, Optional

from ._errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN, ASYNC, GENERATOR, ASYNC_GENERATOR = "plain", "async", "generator", "async generator"
_TESTS = (
    (inspect.iscoroutinefunction, ASYNC),
    (inspect.isasyncgenfunction, ASYNC_GENERATOR),
    (inspect.isgeneratorfunction, GENERATOR),
)


def shown(function: object) -> str:
    """The name of a function, for messages."""
    return getattr(function, "__qualname__", None) or repr(function)


def _class_of(value: object) -> Any:
    return type(value)


def _own_kind(function: Any) -> str:
    for given in (function, getattr(_class_of(function), "__call__", None)):
        for test, kind in _TESTS:
            if test(given):
                return kind
    return PLAIN


def _inner(function: Any) -> Any:
    """The function beneath partials and decorators."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def kind_of(function: Any) -> str:
    """The kind of a function that is to be decorated."""
    of = _class_of(function)
    if not callable(function) or issubclass(of, (type, staticmethod, classmethod)):
        raise InvalidError(f"cannot decorate {shown(function)}: got {of.__name__}, expected a function")
    kind = _own_kind(function)
    inner = _own_kind(_inner(function))
    if kind == PLAIN and inner != PLAIN:
        raise InvalidError(
            f"cannot tell when the body of {shown(function)} runs: a plain decorator hides an {inner} function; "
            "decorate the function itself, beneath that decorator"
        )
    return kind


def blocking(what: str, function: Any, instead: str) -> None:
    """Refuses a function whose body does not run when it is called. `instead` is the method that takes it."""
    kind = _own_kind(function)
    if kind != PLAIN:
        fix = f"; use `{instead}`" if instead and kind == ASYNC else ""
        raise InvalidError(f"{what} must be a plain function, got the {kind} function {shown(function)}{fix}")


def awaitable(what: str, function: Any, instead: str) -> None:
    """Refuses a function that would block the event loop, or whose body would never run. Nobody can tell with a
    lambda, or with a decorated async function."""
    kind = _own_kind(function)
    is_hidden = _own_kind(_inner(function)) == ASYNC or getattr(function, "__name__", "") == "<lambda>"
    if kind != ASYNC and not (kind == PLAIN and is_hidden):
        got = f"got the {kind} function {shown(function)}"
        raise InvalidError(f"{what} must be an async function, {got}; use `{instead}`")


def finished(function: Any, value: Any) -> Any:
    """The value that a function returned, unless its body has yet to run."""
    of = _class_of(value)
    if issubclass(of, (Coroutine, Generator, AsyncGenerator)):
        if issubclass(of, Coroutine):
            of.close(value)  # pyright: ignore[reportUnknownMemberType]
        raise InvalidError(f"{shown(function)} returned a {of.__name__}, whose body would run too late")
    return value


def coroutine(function: Any, value: Any) -> Any:
    """The awaitable that a function returned."""
    if not inspect.isawaitable(value):
        got = _class_of(value).__name__
        raise InvalidError(f"{shown(function)} blocked the event loop: got {got}, expected an awaitable")
    return value


def takes(function: Any, argument: str, given: Mapping[str, Any]) -> bool:
    """Whether a function has this parameter, and the caller has not given it."""
    try:
        parameter = inspect.signature(function).parameters.get(argument)
    except (TypeError, ValueError):  # a builtin
        return False
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY and argument not in given


class Inserted:
    """A function with an argument that callers do not give, wherever it stands among the others."""

    def __init__(self, function: Callable[..., Any], argument: str) -> None:
        self._function = function
        self._argument = argument
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self.visible = self._signature.replace(parameters=[one for one in parameters if one.name != argument])

    def bound(self, args: Any, kwargs: Any) -> Callable[[Any], Any]:
        """A call with these arguments, which takes the other one. Raises a TypeError if they do not fit."""
        given = self.visible.bind(*args, **kwargs).arguments

        def call(value: Any) -> Any:
            every = inspect.BoundArguments(self._signature, {**given, self._argument: value})
            return self._function(*every.args, **every.kwargs)

        return call


def with_turn(job: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[Any], Any]:
    """A call of a job, which takes the `Turn` if it has a parameter of that name."""
    if takes(job, "turn", kwargs):
        return Inserted(job, "turn").bound(args, kwargs)
    return lambda _: job(*args, **kwargs)


def text_of(error: BaseException) -> str:
    """An exception as valid Unicode."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}: its message cannot be shown"
    return valid(text)


def valid(text: str) -> str:
    """The text, with replacements for what is no valid Unicode, such as names of files in another encoding."""
    return text.encode("utf-8", "replace").decode()


class Template:
    """The name of a lock or a value, with arguments of a function in braces."""

    def __init__(self, name: str, function: Callable[..., Any], guard: Optional[str] = None) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        self._guard = guard
        parameters = self._signature.parameters
        if guard is not None and guard not in parameters:
            known = ", ".join(parameters)
            raise InvalidError(f"guard: got {guard!r}, expected an argument of {shown(function)}: {known}")
        self.inserted = None if guard is None else Inserted(function, guard)
        self._visible = self._signature if self.inserted is None else self.inserted.visible
        try:
            fields = [field for _, field, _, _ in Formatter().parse(name) if field is not None]
        except ValueError as error:
            raise InvalidError(f"name {name!r}: {error}") from None
        for field in fields:
            argument = field.replace("[", ".").partition(".")[0]
            if argument not in parameters or argument == guard:
                known = ", ".join(other for other in parameters if other != guard) or "none"
                raise InvalidError(
                    f"name {name!r}: got {{{field}}}, expected an argument of {shown(function)}: {known}"
                )

    def filled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name for a call."""
        bound = self._visible.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._name.format_map(bound.arguments)

    def hide_guard(self, wrapper: Any) -> None:
        """Takes the argument for the guard out of the signature of the decorated function, so that a framework
        does not ask the caller for it."""
        if self._guard is not None:
            wrapper.__signature__ = self._visible
            hints = getattr(wrapper, "__annotations__", {})
            wrapper.__annotations__ = {name: hint for name, hint in hints.items() if name != self._guard}
