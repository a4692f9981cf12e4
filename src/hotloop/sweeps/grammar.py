"""Spaces as text: `0.9,0.95`, `0.1:0.5:0.1`, `2**-7:2**-2:x2`, `log:1e-5,1e-2`, `int:16,256`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hotloop.bandits.options import value_of
from hotloop.errors import ConfigError

FORMS = (
    "list values as 0.01,0.1 (with commas in them as 1,2;3,4), write steps as 0.1:0.5:0.1, "
    "factors as 2**-7:2**-2:x2, ranges as log:1e-5,1e-2, lin:0,1 or int:16,256, and behind them "
    "their number of points for a grid, log:1e-5,1e-2,7"
)
MAX_POINTS = 100_000
_KINDS = ("log", "lin", "int")
_PROGRESSION = re.compile(r"(none|[\d.+-][^:]*)?:")  # values with colons in them begin with words


@dataclass(frozen=True)
class Choices:
    """Values that an option may take.

    Attributes:
        values: of the option's type.
    """

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one, each as likely."""
        return self.values[int(rng.integers(len(self.values)))]

    def points(self, name: str) -> tuple[Any, ...]:
        """Return the values of a grid: all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers that an option may take.

    Attributes:
        low, high: both are among them.
        is_log: whether their logarithm is drawn uniformly.
        is_int: whether they are whole.
        count: of a grid; None: as many as there are whole ones, or none.
    """

    low: float
    high: float
    is_log: bool = False
    is_int: bool = False
    count: int | None = None

    def draw(self, rng: np.random.Generator) -> float | int:
        """Return one, uniformly, or so that its logarithm is."""
        if self.is_int:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        if self.is_log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))

    def points(self, name: str) -> tuple[Any, ...]:
        """Return the values of a grid, the ends among them.

        Raises:
            ConfigError: the space of that name does not say how many.
        """
        count = self.count
        if count is None:
            count = int(self.high - self.low) + 1 if self.is_int else 0
            if not 1 <= count <= MAX_POINTS:
                raise ConfigError(
                    f"a grid needs the number of points of `{name}`: write it behind the ends, as "
                    "`log:1e-5,1e-2,7`"
                )
        space = np.geomspace if self.is_log else np.linspace
        points = space(self.low, self.high, count)
        if self.is_int:
            return tuple(dict.fromkeys(round(x) for x in points.tolist()))
        return tuple(float(f"{x:.6g}") for x in points)


def parsed(name: str, text: str, value: Callable[[str], Any]) -> Choices | Range:
    """Return what a text stands for.

    Args:
        name: of the option.
        text: a range, or values with commas between them, or with semicolons where there is one;
            each may be first:last:step or first:last:xfactor. The last is among those where a whole
            number of steps leads there.
        value: gives the value that a text stands for.

    Raises:
        ConfigError: it is written wrongly, or stands for too many values.
    """
    kind, colon, ends = text.partition(":")
    values: list[Any] = []
    try:
        if colon and kind in _KINDS and ";" not in text:
            return _range(kind, [x.strip() for x in ends.split(",")])
        parts = text.removesuffix(";").split(";" if ";" in text else ",")
        for part in map(str.strip, parts):
            if not part:
                raise ConfigError("a value is missing")
            is_one = _PROGRESSION.match(part) is None
            values += [part] if is_one else map(str, _progression(part))
    except ConfigError as error:
        raise wrong(name, text, error) from None
    return Choices(tuple(map(value, values)))


def wrong(name: str, text: str, why: object) -> ConfigError:
    """Return an error: a space is written wrongly."""
    return ConfigError(f"`{name}={text}` is no range: {why}; {FORMS}")


def _range(kind: str, ends: Sequence[str]) -> Range:
    if len(ends) not in (2, 3):
        raise ConfigError("it must have two ends, and may have a number of points behind them")
    low, high = (float(_number(end)) for end in ends[:2])
    count = int(ends[2]) if len(ends) == 3 and ends[2].isdecimal() else None
    if low >= high:
        raise ConfigError("it must lead from the lower end to the higher one")
    if kind == "log" and low <= 0:
        raise ConfigError("it must be above 0, for its logarithm")
    if len(ends) == 3 and not 2 <= (count or 0) <= MAX_POINTS:
        raise ConfigError(f"it must have 2 to {MAX_POINTS:,} points, got {ends[2]}")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError("it must have whole ends")
    return Range(low, high, is_log=kind == "log", is_int=kind == "int", count=count)


def _progression(text: str) -> list[int | float]:
    ends = text.split(":")
    if len(ends) != 3:
        raise ConfigError(f"`{text}` must have three parts, first:last:step")
    is_geometric = ends[2].strip().lower().startswith("x")
    ends[2] = ends[2].strip()[1:] if is_geometric else ends[2]
    first, last, step = (_number(end) for end in ends)
    if is_geometric:
        if first * last <= 0 or step <= 0 or step == 1:
            raise ConfigError(f"`{text}` needs ends of one sign, and a factor above 0 but 1")
        num = math.log(last / first) / math.log(step)
    else:
        if step == 0:
            raise ConfigError(f"the step of `{text}` is 0")
        num = float((last - first) / step)
    if num < -1e-9:
        raise ConfigError(f"`{text}` leads away from its end")
    if num >= MAX_POINTS:
        raise ConfigError(f"`{text}` stands for more than {MAX_POINTS:,} values")
    # Exact until here: 0.1 + 2·0.1 is then the very 0.3 that a list would have.
    steps = range(math.floor(num + 1e-9) + 1)
    exact = [first * step**one if is_geometric else first + step * one for one in steps]
    are_whole = all(isinstance(value_of(end), int) for end in ends)
    return [int(value) if are_whole else float(value) for value in exact]


def _number(text: str) -> Fraction:
    """The number that was written: 0.1, where a float is 0.1000000000000000055…"""
    value: Any = value_of(text)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and abs(value) < 1e308):
        raise ConfigError(f"a range is made of finite numbers, got '{text}'")
    try:
        return Fraction(text.strip() if value else 0)  # "1e-999999999" has a billion digits
    except ValueError:  # a power
        return Fraction(value)


def texts_of(arguments: Sequence[str], option: str = "") -> dict[str, str]:
    """Return the spaces among arguments, such as `learning_rate=log:1e-5,1e-2`, of an option.

    Raises:
        ConfigError: one is none, or is there twice.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise ConfigError(
                f"expected {option}FIELD=RANGE such as epsilon=0.01,0.1, got '{option}{argument}'"
            )
        if name in found:
            raise ConfigError(f"`{option}{name}` is given twice: give all its values at once")
        found[name] = text
    return found
