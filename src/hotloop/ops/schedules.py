"""Schedules: numbers that change while a run goes on, as values.

A schedule is a function of the run's progress, from 0 at its first step to 1 at its end. Its text
parses back, so that it is written in `config.json` and on the command line as in Python:

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

from hotloop.errors import ConfigError, nearest
from hotloop.importing import import_object, name_of

FORMS = (
    "expected a number (0.001) or a schedule: `linear:0.001,0` (from, to; `linear:1,0.05,0.5` is "
    "there after half of the run), `cosine:0.001,0` (likewise), `piecewise:0=0.001,0.5=0.0001` "
    "(values at shares of the run), `steps:0=0.001,0.5=0.0001` (held until the next one) or "
    "`my_module:my_function` (called with the share that is done)"
)


class Schedule(ABC):
    """A number as a function of the run's progress; `str` gives the text that parses back."""

    @abstractmethod
    def __call__(self, progress: float) -> float:
        """Return the value at a progress, from 0 to 1."""

    @abstractmethod
    def extremes(self) -> tuple[float, ...]:
        """Return values that all others lie between."""

    @property
    def is_constant(self) -> bool:
        """Whether the value never changes."""
        return len(set(self.extremes())) == 1

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """One value."""

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
                "give it as a share of the run"
            )

    def __call__(self, progress: float) -> float:
        passed = min(progress / self.until, 1.0)
        return self.start * (1 - passed) + self.end * passed

    def __str__(self) -> str:
        numbers = (self.start, self.end, self.until)[: 2 if self.until == 1 else 3]
        return f"{type(self).__name__.lower()}:{','.join(map(_text, numbers))}"

    def extremes(self) -> tuple[float, ...]:
        return (float(self.start), float(self.end))


@dataclass(frozen=True, repr=False)
class Cosine(Linear):
    """Half a period of a cosine that ends at progress `until`."""

    def __call__(self, progress: float) -> float:
        passed = min(progress / self.until, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * passed)) / 2


@dataclass(frozen=True, repr=False)
class Piecewise(Schedule):
    """Straight lines between points, (progress, value) each."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        places = [place for place, _ in self.points]
        _check_finite(*places, *self.extremes())
        ascending = all(a < b for a, b in pairwise(places))
        if not places or not ascending or places[0] < 0 or places[-1] > 1:
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
        passed = (progress - begin) / (until - begin)
        return start * (1 - passed) + end * passed

    def __str__(self) -> str:
        points = ",".join(f"{_text(x)}={_text(y)}" for x, y in self.points)
        return f"{self._kind}:{points}"

    def extremes(self) -> tuple[float, ...]:
        return tuple(float(value) for _, value in self.points)


@dataclass(frozen=True, repr=False)
class Steps(Piecewise):
    """Values that are held until the next point."""

    def __call__(self, progress: float) -> float:
        after = bisect_right(self.points, progress, key=lambda point: point[0])
        return float(self.points[max(after - 1, 0)][1])


@dataclass(frozen=True, repr=False)
class Function(Schedule):
    """A function of a user's own, and the name that it is imported by."""

    call: Callable[..., Any]
    name: str

    def __call__(self, progress: float) -> float:
        value = self.call(progress)
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
        """Return its values at progress 0, ¼, ½, ¾ and 1."""
        return tuple(self(quarter / 4) for quarter in range(5))

    @property
    def is_constant(self) -> bool:
        return False


def constant(value: float) -> Schedule:
    """Return the schedule that is `value` all the time."""
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
    """Return straight lines between points; before the first and after the last it is constant.

    Args:
        points: (progress, value) each, at ascending progress.

    Raises:
        ConfigError: there is no point, or they are not ascending, in [0, 1] and finite.
    """
    return Piecewise(tuple((place, value) for place, value in points))


def steps(points: Sequence[tuple[float, float]]) -> Schedule:
    """Return values that are held until the next point; before the first it is the first's.

    Args, Raises:
        see `piecewise`.
    """
    return Steps(tuple((place, value) for place, value in points))


def function(call: str | Callable[[float], float]) -> Schedule:
    """Return a schedule that calls a function of the progress.

    Args:
        call: the function, or its name, `module:name`. A run can be resumed from the command line
            only if the function can be imported by its name.

    Raises:
        UnknownNameError: there is no such module, or it has no such name.
        ConfigError: importing it raised, or it is no function.
    """
    found: Any = call
    if isinstance(call, str):
        found = import_object(call, kind="schedule", example="my_module:my_function")
    if not callable(found):
        raise ConfigError(f"{FORMS}, got {call!r}")
    return Function(found, call if isinstance(call, str) else name_of(found))


def as_schedule(value: float | str | Schedule | Callable[[float], float]) -> Schedule:
    """Return a number, a text or a function as a schedule; a schedule as it is.

    Raises:
        ConfigError: it is none of these, its text is written wrongly, or a number is not finite.
        UnknownNameError: it is the name of a function that there is not.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return _parsed(value)
    if isinstance(value, (int, float)):
        return Constant(value)
    return function(value)


_KINDS = ("constant", "linear", "cosine", "piecewise", "steps")


def _parsed(text: str) -> Schedule:
    kind, colon, rest = text.strip().partition(":")
    try:
        if not colon:
            return Constant(float(kind))
        if kind in ("linear", "cosine"):
            return {"linear": linear, "cosine": cosine}[kind](*map(float, rest.split(",")))
        if kind == "constant":
            return Constant(float(rest))
        if kind in ("piecewise", "steps"):
            place_and_value = (point.split("=") for point in rest.split(","))
            points = [(float(place), float(value)) for place, value in place_and_value]
            return piecewise(points) if kind == "piecewise" else steps(points)
    except ConfigError:
        raise
    except (TypeError, ValueError):  # of other numbers than a kind has, or of no number
        pass
    if kind not in _KINDS and re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text.strip()):
        return function(text.strip())
    hint = "" if kind in _KINDS else nearest(kind, _KINDS)
    raise ConfigError(f"{FORMS}, got '{text}'{hint}")


def _check_finite(*numbers: float) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ConfigError(f"a schedule is made of numbers, got {number!r}")
        if not math.isfinite(number):
            raise ConfigError(f"a schedule's numbers must be finite, got {number}")


def _text(number: float) -> str:
    return repr(float(number)).removesuffix(".0")
