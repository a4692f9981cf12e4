"""Puts a span around other people's functions."""

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

_MARK = "_hotloop_timed"
# What was seen of the program that no span says, by name.
facts: dict[str, float] = {}


def _never() -> bool:
    return False


# Whether torch is reading the code to compile it, which is to see the function alone. Torch's own
# function of that name takes its place when torch is there: its compiler knows the answer.
is_compiling: Callable[[], bool] = _never


class _Inside(threading.local):
    """The spans that this thread is inside of: a wrapper's step calls the wrapped one's."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __reduce__(self) -> str:
        # A class of a script's own is pickled with its functions, which refer to this.
        return "_inside"


_inside = _Inside()
# A fork goes on inside of its parent's functions, and may never leave them.
os.register_at_fork(after_in_child=lambda: _inside.names.clear())


def timed(
    function: Callable[..., Any],
    name: str,
    kind: Kind = "work",
    *,
    before: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """The function, each outermost call of which is a span.

    Args:
        function: a plain one.
        name, kind: of the span; within one of that name no other is opened.
        before: is called with the function's arguments first.
    """
    inside = _inside

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        names = inside.names
        if name in names:
            return function(*args, **kwargs)
        names.add(name)
        try:
            if before is not None:
                before(*args, **kwargs)
            with span(name, kind):
                return function(*args, **kwargs)
        except BaseException as error:
            # This frame is none of the program's (before Python 3.11 this has no effect).
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            names.discard(name)

    # `inspect.getfullargspec` does not follow `__wrapped__`.
    with suppress(ValueError, TypeError):
        import inspect  # 7 ms, which only a process that has something to wrap need pay

        call.__signature__ = inspect.signature(function)  # pyright: ignore
    setattr(call, _MARK, True)
    return call


def wrap(
    owner: type | ModuleType, attribute: str, name: str, kind: Kind = "work", **how: Any
) -> None:
    """Replace a function in the class or module that defines it; what is not there is left."""
    function = vars(owner).get(attribute)
    if isinstance(function, FunctionType) and not hasattr(function, _MARK):
        setattr(owner, attribute, timed(function, name, kind, **how))


def wrap_subclasses(base: type, attributes: dict[str, str], **how: Any) -> None:
    """Wrap functions of a class, of those derived from it, and of those that will be.

    Args:
        base: the class.
        attributes: name of the span by the function's.
        how: as for `timed`.
    """

    def wrap_one(owner: type) -> None:
        for attribute, name in attributes.items():
            wrap(owner, attribute, name, **how)

    def wrap_all(owner: type) -> None:
        wrap_one(owner)
        for derived in type.__subclasses__(owner):
            wrap_all(derived)

    wrap_all(base)
    previous = vars(base).get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807 (is one)
        if previous is not None:
            previous.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)  # pyright: ignore[reportArgumentType]
        wrap_one(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # pyright: ignore
