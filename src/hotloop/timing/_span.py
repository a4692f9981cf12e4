"""The public interface of spans, common to both recorders."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from hotloop.timing._format import KINDS

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Span(Protocol):
    """A named block of time: a context manager, or a decorator of a function."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def __call__(self, function: _Function, /) -> _Function: ...


def check_span(name: object, kind: object) -> None:
    """Check the name and the kind of a span.

    Raises:
        TypeError: `name` is not a string.
        ValueError: `name` contains a NUL character, or `kind` does not exist.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"a span's name must be a str, got {type(name).__name__}: pass span('env_step')"
        )
    if "\0" in name:
        raise ValueError(f"a span's name must have no NUL characters, got {name!r}: drop them")
    if kind not in KINDS:
        raise ValueError(f"a span's kind must be one of {', '.join(KINDS)}, got {kind!r}: pass one")


def decorate(
    open_span: Callable[..., Span], name: str, kind: str, function: _Function
) -> _Function:
    """Wrap `function` so that each of its calls is a span.

    Raises:
        TypeError: `function` is a coroutine or generator function, whose call returns before its
            body has run.
    """
    import inspect  # takes 7 ms, so only processes with decorators import it

    if not callable(function):
        raise TypeError(
            f"a span decorates a function, got {type(function).__name__}: write @span({name!r}) "
            "above a `def`, or `with span(...)` around statements"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"a span can decorate plain functions only, got {function.__qualname__}, which returns "
            "before it has run: put `with span(...)` around those of its parts that don't wait"
        )

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with open_span(name, kind):
            return function(*args, **kwargs)

    return timed  # pyright: ignore[reportReturnType]
