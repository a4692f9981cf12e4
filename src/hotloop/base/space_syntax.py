"""Syntax of search spaces, such as `0.9,0.95`, `0.1:0.5:0.1`, `2**-7:2**-2:x2`, `log:1e-5,1e-2`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, UnknownNameError

SYNTAX = (
    "list values as 0.01,0.1 (or 1,2;3,4 if they contain commas), write steps as 0.1:0.5:0.1, "
    "factors as 2**-7:2**-2:x2, ranges as log:1e-5,1e-2, lin:0,1 or int:16,256, and append the "
    "number of points for a grid: log:1e-5,1e-2,7"
)
MAX_POINTS = 100_000
_KINDS = ("log", "lin", "int")
_WORDS = {"none": None, "true": True, "false": False}
_RATIO = re.compile(r"([^/]+)/([^/]+)")
_POWER = re.compile(r"([^*]+)\*\*([^*]+)")
_PROGRESSION = re.compile(r"(none|[\d.+-][^:]*)?:")  # values that contain colons start with a word


def parse_value(text: str) -> int | float | bool | None:
    """Return the value of a number ("0.1", "1/128", "2**-7"), "none", "true" or "false".

    Raises:
        ConfigError: The text is none of these.
    """
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    try:
        if match := _POWER.fullmatch(stripped):
            return math.pow(float(match[1]), float(match[2]))
        if match := _RATIO.fullmatch(stripped):
            return float(match[1]) / float(match[2])
        try:
            return int(stripped)
        except ValueError:
            return float(stripped)
    except (ValueError, ArithmeticError):
        raise ConfigError(
            "a value must be a number such as 0.1, 1/128 or 2**-7, or none, true, false; got "
            f"'{text}'"
        ) from None


@dataclass(frozen=True)
class Choices:
    """A finite set of values of an option.

    Attributes:
        values: values of the option's type.
    """

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a uniformly random value."""
        return self.values[int(rng.integers(len(self.values)))]

    def points(self, name: str) -> tuple[Any, ...]:
        """Return the values of a grid, which are all values."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A range of numbers of an option.

    Attributes:
        low, high: ends of the range, which are included.
        is_log: whether the logarithm is drawn uniformly.
        is_int: whether the numbers are integers.
        count: number of points of a grid. None: all integers, invalid for other numbers.
    """

    low: float
    high: float
    is_log: bool = False
    is_int: bool = False
    count: int | None = None

    def draw(self, rng: np.random.Generator) -> float | int:
        """Return a random number, uniform itself or in its logarithm."""
        if self.is_int:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        if self.is_log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))

    def points(self, name: str) -> tuple[Any, ...]:
        """Return the values of a grid of the option `name`, including both ends.

        Raises:
            ConfigError: the range has no number of points.
        """
        count = self.count
        if count is None:
            count = int(self.high - self.low) + 1 if self.is_int else 0
            if not 1 <= count <= MAX_POINTS:
                raise ConfigError(
                    f"a grid needs the number of points of `{name}`: append it to the range, as "
                    "in `log:1e-5,1e-2,7`"
                )
        space = np.geomspace if self.is_log else np.linspace
        exact = space(self.low, self.high, count).tolist()
        if self.is_int:
            return tuple(dict.fromkeys(map(round, exact)))
        for digits in range(6, 18):  # as few as show different numbers
            points = [self.low, *(float(f"{x:.{digits}g}") for x in exact[1:-1]), self.high]
            if len(set(points)) == count:
                return tuple(points)
        return tuple(exact)


def parse_domain(name: str, text: str, parse_item: Callable[[str], Any]) -> Choices | Range:
    """Return the space that a text describes.

    Args:
        name: name of the option.
        text: a range, or values separated by semicolons if it contains any, else by commas. A value
            may also be first:last:step or first:last:xfactor, which includes the last value if an
            integer number of steps leads to it.
        parse_item: function that parses a single value.

    Raises:
        ConfigError: the syntax is wrong, or there are too many values.
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
            is_single = _PROGRESSION.match(part) is None
            values += [part] if is_single else map(str, _progression(part))
    except ConfigError as error:
        raise range_error(name, text, error) from None
    except ArithmeticError:
        raise range_error(name, text, "its numbers are too far apart or too close") from None
    try:
        return Choices(tuple(map(parse_item, values)))
    except (ConfigError, UnknownNameError) as error:
        if kind.isalpha() and colon and not str(error).endswith("?"):
            raise type(error)(f"{error}; a range begins with {', '.join(_KINDS)}") from error
        raise


def range_error(name: str, text: str, reason: object) -> ConfigError:
    """Return an error for a space with wrong syntax."""
    return ConfigError(f"`{name}={text}` is not a valid range: {reason}; {SYNTAX}")


def _range(kind: str, ends: Sequence[str]) -> Range:
    if len(ends) not in (2, 3):
        raise ConfigError("it must have two ends, and may have a number of points after them")
    low, high = (float(_exact_number(end)) for end in ends[:2])
    count = int(ends[2]) if len(ends) == 3 and ends[2].isdecimal() else None
    if low >= high:
        raise ConfigError("the lower end must come first")
    if kind == "log" and low <= 0:
        raise ConfigError("the lower end must be above 0, for its logarithm")
    if len(ends) == 3 and not 2 <= (count or 0) <= MAX_POINTS:
        raise ConfigError(f"it must have 2 to {MAX_POINTS:,} points, got {ends[2]}")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError("its ends must be integers")
    if kind == "int" and max(abs(low), abs(high)) > 2**53:
        raise ConfigError("its ends must be integers of at most 2**53")
    return Range(low, high, is_log=kind == "log", is_int=kind == "int", count=count)


def _progression(text: str) -> list[int | float]:
    ends = text.split(":")
    if len(ends) != 3:
        raise ConfigError(f"`{text}` must have three parts, first:last:step")
    is_geometric = ends[2].strip().lower().startswith("x")
    ends[2] = ends[2].strip()[1:] if is_geometric else ends[2]
    first, last, step = (_exact_number(end) for end in ends)
    if is_geometric:
        if first * last <= 0 or step <= 0 or step == 1:
            raise ConfigError(f"`{text}` needs ends of the same sign, and a positive factor, not 1")
        num_steps = math.log(last / first) / math.log(step)
    else:
        if step == 0:
            raise ConfigError(f"the step of `{text}` is 0")
        num_steps = float((last - first) / step)
    if num_steps < -1e-9:
        raise ConfigError(f"`{text}` leads away from its end")
    if num_steps >= MAX_POINTS:
        raise ConfigError(f"`{text}` has more than {MAX_POINTS:,} values")
    # Compute with fractions, so that 0.1 + 2 · 0.1 is the same float as 0.3 in a list.
    steps = range(math.floor(num_steps + 1e-9) + 1)
    exact = [first * step**k if is_geometric else first + step * k for k in steps]
    are_integers = all(isinstance(parse_value(end), int) for end in ends)
    return [int(value) if are_integers else float(value) for value in exact]


def _exact_number(text: str) -> Fraction:
    """Return a decimal number exactly: 0.1, not the float 0.1000000000000000055…"""
    value: Any = parse_value(text)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and abs(value) < 1e307):  # so that differences are finite
        raise ConfigError(f"expected a finite number, got '{text}'")
    try:
        return Fraction(text.strip() if value else 0)  # "1e-999999999" has a billion digits
    except ValueError:  # a power, such as 2**-7
        return Fraction(value)


def parse_assignments(
    arguments: Sequence[str],
    option: str = "",
    *,
    form: str = "FIELD=RANGE such as epsilon=0.01,0.1",
) -> dict[str, str]:
    """Return name → text from arguments such as `learning_rate=log:1e-5,1e-2` of an `option`.

    Args:
        arguments: the arguments.
        option: text before the arguments in error messages, such as "--env ".
        form: the expected form for error messages.

    Raises:
        ConfigError: an argument has another form, or a name is given twice.
    """
    texts: dict[str, str] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        name = name.strip().replace("-", "_")
        if not name.isidentifier() or not equals:
            raise ConfigError(f"expected {option}{form}, got '{option}{argument}'")
        if name in texts:
            raise ConfigError(f"`{option}{name}` is given twice: give it once")
        texts[name] = text
    return texts
