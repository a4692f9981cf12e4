"""Schedules: hyper-parameters that change during a run.

A schedule is a function of the run's progress, from 0 at its first step to 1 at its end. It has the
same text on the command line and in `config.json`, on the right of its form in Python:

    linear(3e-4, 0.0)                        linear:0.0003,0
    linear(1.0, 0.05, until=0.5)             linear:1,0.05,0.5
    cosine(1e-3, 1e-5)                       cosine:0.001,1e-05
    piecewise([(0.0, 1e-3), (0.5, 1e-4)])    piecewise:0=0.001,0.5=0.0001
    steps([(0.0, 1e-3), (0.5, 1e-4)])        steps:0=0.001,0.5=0.0001
    function("my_module:my_function")        my_module:my_function
    constant(1e-3)                           0.001
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hotloop.base.importing import import_object, name_of
from hotloop.errors import ConfigError, nearest, shortened

FORMS = (
    "expected a number (0.001) or a schedule: `linear:0.001,0` (from, to; `linear:1,0.05,0.5` "
    "ends at half of the run), `cosine:0.001,0` (likewise), `piecewise:0=0.001,0.5=0.0001` "
    "(values at shares of the run), `steps:0=0.001,0.5=0.0001` (constant until the next one) or "
    "`my_module:my_function` (called with the progress, 0 to 1)"
)


class Schedule(ABC):
    """A number as a function of the run's progress. `str` returns text for `as_schedule`."""

    @abstractmethod
    def __call__(self, progress: float) -> float:
        """Return the value at a progress, from 0 to 1."""

    @abstractmethod
    def extremes(self) -> tuple[float, ...]:
        """Return values that bound all others."""

    @property
    def is_constant(self) -> bool:
        """Whether the value never changes."""
        return len(set(self.extremes())) == 1

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """A constant value."""

    value: float

    def __post_init__(self) -> None:
        _check_finite(self.value)

    def __call__(self, progress: float) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return _text(self.value)

    def extremes(self) -> tuple[float, ...]:
        return (float(self.value),)


@dataclass(frozen=True, repr=False)
class Linear(Schedule):
    """A straight line that ends at progress `until`."""

    start: float
    end: float
    until: float = 1.0

    def __post_init__(self) -> None:
        _check_finite(self.start, self.end, self.until)
        if not 0 < self.until <= 1:
            raise ConfigError(
                f"a schedule must end at a progress above 0 and up to 1, got {_text(self.until)}: "
                "use a share of the run"
            )

    def __call__(self, progress: float) -> float:
        fraction = min(progress / self.until, 1.0)
        return self.start * (1 - fraction) + self.end * fraction

    def __str__(self) -> str:
        numbers = (self.start, self.end, self.until)[: 2 if self.until == 1 else 3]
        return f"{type(self).__name__.lower()}:{','.join(map(_text, numbers))}"

    def extremes(self) -> tuple[float, ...]:
        return (float(self.start), float(self.end))


@dataclass(frozen=True, repr=False)
class Cosine(Linear):
    """Half a period of a cosine that ends at progress `until`."""

    def __call__(self, progress: float) -> float:
        fraction = min(progress / self.until, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * fraction)) / 2


@dataclass(frozen=True, repr=False)
class Piecewise(Schedule):
    """Straight lines between points (progress, value)."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        positions = [position for position, _ in self.points]
        _check_finite(*positions, *self.extremes())
        ascending = all(a < b for a, b in pairwise(positions))
        if not positions or not ascending or positions[0] < 0 or positions[-1] > 1:
            raise ConfigError(
                f"a {self._kind} schedule must have points at ascending progress, from 0 to 1, got "
                f"'{self}': write {self._kind}:0=0.001,0.5=0.0001"
            )

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    def __call__(self, progress: float) -> float:
        after = bisect_right(self.points, progress, key=lambda point: point[0])
        if after in (0, len(self.points)):
            return float(self.points[max(after - 1, 0)][1])
        (begin, start), (until, end) = self.points[after - 1 : after + 1]
        fraction = (progress - begin) / (until - begin)
        return start * (1 - fraction) + end * fraction

    def __str__(self) -> str:
        points = ",".join(f"{_text(x)}={_text(y)}" for x, y in self.points)
        return f"{self._kind}:{points}"

    def extremes(self) -> tuple[float, ...]:
        return tuple(float(value) for _, value in self.points)


@dataclass(frozen=True, repr=False)
class Steps(Piecewise):
    """A value that is constant until the next point."""

    def __call__(self, progress: float) -> float:
        after = bisect_right(self.points, progress, key=lambda point: point[0])
        return float(self.points[max(after - 1, 0)][1])


@dataclass(frozen=True, repr=False)
class CustomSchedule(Schedule):
    """A user's function, and the name to import it by."""

    call: Callable[..., Any]
    name: str

    def __call__(self, progress: float) -> float:
        try:
            value = self.call(progress)
        except Exception as error:  # the user's function may raise any exception
            raise ConfigError(
                f"the schedule {self.name} must be a function of the progress from 0 to 1, but "
                f"at {progress:g} it raised {type(error).__name__}: {error}; change it"
            ) from error
        try:
            value = float(value)
            _check_finite(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the schedule {self.name} must return a finite number, got {value!r} at progress "
                f"{progress:g}: change it"
            ) from error
        return value

    def __str__(self) -> str:
        return self.name

    def extremes(self) -> tuple[float, ...]:
        """Return the values at progress 0, ¼, ½, ¾ and 1."""
        return tuple(self(quarter / 4) for quarter in range(5))

    @property
    def is_constant(self) -> bool:
        return False


def constant(value: float) -> Schedule:
    """Return a constant schedule."""
    return Constant(value)


def linear(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return a straight line: start (1 − p) + end p, p = min(progress / until, 1).

    Raises:
        ConfigError: a number is not finite, or `until` is not in (0, 1].
    """
    return Linear(start, end, until)


def cosine(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return half a cosine: end + (start − end) (1 + cos π p) / 2, p = min(progress / until, 1).

    Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts.

    Raises:
        ConfigError: a number is not finite, or `until` is not in (0, 1].
    """
    return Cosine(start, end, until)


def piecewise(points: Sequence[tuple[float, float]]) -> Schedule:
    """Return straight lines between points, constant before the first and after the last point.

    Args:
        points: Pairs (progress, value), at ascending progress.

    Raises:
        ConfigError: There is no point, or they are not ascending, in [0, 1] and finite.
    """
    return Piecewise(tuple((position, value) for position, value in points))


def steps(points: Sequence[tuple[float, float]]) -> Schedule:
    """Return a step function, with the first value before the first point.

    Args, Raises:
        See `piecewise`.
    """
    return Steps(tuple((position, value) for position, value in points))


def function(call: str | Callable[[float], float]) -> Schedule:
    """Return a schedule that calls a function of the progress.

    Args:
        call: The function, or its name, `module:name`. A run can be resumed from the command line
            only if the function can be imported by its name.

    Raises:
        UnknownNameError: The module does not exist, or has no such name.
        ConfigError: Importing it raised an exception, or it is not a function.
    """
    target: Any = call
    if isinstance(call, str):
        target = import_object(call, kind="schedule", example="my_module:my_function")
    if not callable(target):
        raise ConfigError(f"{FORMS}, got {call!r}")
    return CustomSchedule(target, call if isinstance(call, str) else name_of(target))


def as_schedule(value: float | str | Schedule | Callable[[float], float]) -> Schedule:
    """Convert a number, a text or a function to a schedule.

    Raises:
        ConfigError: The type or the text is invalid, or a number is not finite.
        UnknownNameError: The text names a function that does not exist.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, (int, float)):
        return Constant(value)
    return function(value)


_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_KINDS = ("constant", "linear", "cosine", "piecewise", "steps")


def names_function(text: str) -> bool:
    """Return whether `as_schedule` would import a function to convert this text."""
    kind = text.strip().partition(":")[0]
    return kind not in _KINDS and _FUNCTION.fullmatch(text.strip()) is not None


def _parse(text: str) -> Schedule:
    kind, colon, arguments = text.strip().partition(":")
    try:
        if not colon:
            return Constant(float(kind))
        if kind in ("linear", "cosine"):
            return {"linear": linear, "cosine": cosine}[kind](*map(float, arguments.split(",")))
        if kind == "constant":
            return Constant(float(arguments))
        if kind in ("piecewise", "steps"):
            pairs = (point.split("=") for point in arguments.split(","))
            points = [(float(position), float(value)) for position, value in pairs]
            return piecewise(points) if kind == "piecewise" else steps(points)
    except ConfigError:
        raise
    except (TypeError, ValueError):  # a wrong number of arguments, or not a number
        pass
    if names_function(text):
        return function(text.strip())
    hint = "" if kind in _KINDS else nearest(kind, _KINDS)
    raise ConfigError(f"{FORMS}, got '{shortened(text)}'{hint}")


def _check_finite(*numbers: float) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ConfigError(f"a schedule consists of numbers, got {number!r}")
        if not math.isfinite(number):
            raise ConfigError(f"a schedule's numbers must be finite, got {number}")


def _text(number: float) -> str:
    return repr(float(number)).removesuffix(".0")
