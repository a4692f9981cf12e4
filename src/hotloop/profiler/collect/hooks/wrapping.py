"""Wrappers that put a span around the functions of other libraries."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from hotloop.timing import span
from hotloop.timing._format import Kind

_TIMED_ATTRIBUTE = "_hotloop_timed"
# Facts about the program that spans do not contain, by name.
facts: dict[str, float] = {}


def _is_never_compiling() -> bool:
    return False


# Whether torch is tracing the code to compile it, and must see only the wrapped function. Replaced
# by torch's own `is_compiling`, which its compiler evaluates, once torch is imported.
is_compiling: Callable[[], bool] = _is_never_compiling


class _ActiveSpans(threading.local):
    """Names of the open spans of a thread, because a wrapper's step calls the wrapped step."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __reduce__(self) -> str:
        # A class in a script is pickled with its functions, which refer to this global.
        return "_active_spans"


class _Delays:
    """Functions to call before a span opens, by its name: delays of `hotloop profile --what-if`."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[], Any]] = {}

    def __reduce__(self) -> str:
        return "delays"


_active_spans = _ActiveSpans()
delays = _Delays()
# A fork continues inside its parent's functions, and may never return from them.
os.register_at_fork(after_in_child=lambda: _active_spans.names.clear())


def with_span(
    function: Callable[..., Any],
    name: str,
    kind: Kind = "work",
    *,
    before: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Return the function with a span around each outermost call.

    Args:
        function: plain Python function.
        name, kind: name and kind of the span. No span opens inside another of the same name.
        before: function to call first, with the same arguments.
    """
    active_spans = _active_spans

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        names = active_spans.names
        if name in names:
            return function(*args, **kwargs)
        try:
            names.add(name)
            if before is not None:
                before(*args, **kwargs)
            if name in delays.functions:
                delays.functions[name]()
            with span(name, kind):
                return function(*args, **kwargs)
        except BaseException as error:
            # Hide this frame from the traceback (no effect before Python 3.11).
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            names.discard(name)

    # `inspect.getfullargspec` does not follow `__wrapped__`.
    with suppress(ValueError, TypeError):
        import inspect  # 7 ms, only if there is something to wrap

        call.__signature__ = inspect.signature(function)  # pyright: ignore
    setattr(call, _TIMED_ATTRIBUTE, True)
    return call


def wrap(
    owner: type | ModuleType, attribute: str, name: str, kind: Kind = "work", **options: Any
) -> None:
    """Wrap a function in the class or module that defines it, if it exists there."""
    function = vars(owner).get(attribute)
    if isinstance(function, FunctionType) and not hasattr(function, _TIMED_ATTRIBUTE):
        setattr(owner, attribute, with_span(function, name, kind, **options))


def wrap_subclasses(base: type, span_names: dict[str, str], **options: Any) -> None:
    """Wrap functions of a class and of all its present and future subclasses.

    Args:
        base: the class.
        span_names: name of the span, by name of the function.
        options: passed to `with_span`.
    """

    def wrap_class(owner: type) -> None:
        for attribute, name in span_names.items():
            wrap(owner, attribute, name, **options)

    def wrap_all(owner: type) -> None:
        wrap_class(owner)
        for derived in type.__subclasses__(owner):
            wrap_all(derived)

    wrap_all(base)
    previous = vars(base).get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807 (is one)
        if previous is not None:
            previous.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)  # pyright: ignore[reportArgumentType]
        wrap_class(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # pyright: ignore
