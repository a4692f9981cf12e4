"""Ranges: "0.01,0.1", "0.1:0.5:0.1", "2**-7:2**-2:x2", and the values that they stand for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from hotloop.bandits.options import value_of
from hotloop.errors import ConfigError

MAX_VALUES = 10_000
_FORMS = "list values as 0.01,0.1, steps as 0.1:0.5:0.1, factors as 2**-7:2**-2:x2"


def values_of_field(name: str, given: Any, *, of_tuples: bool) -> list[Any]:
    """All values that were given for a field: as a range, as a sequence, or a single one.

    Args:
        name: of the field.
        given: as a user wrote it.
        of_tuples: whether one value is a sequence, or a matrix, itself. As text, several have
            semicolons between them ("0.9,0.8;0.5,0.4").

    Raises:
        ConfigError: there are no values, or their range is written wrongly.
    """
    if of_tuples:
        if isinstance(given, str):
            return [part.strip() for part in given.split(";")]
        if not isinstance(given, (list, tuple)):
            return [given]
        # A value is a row of numbers, or a matrix; several are a list of those, files or None.
        depth = 2 if name == "rewards" else 1
        are_several = any(
            isinstance(one, (str, type(None))) or np.ndim(one) == depth for one in given
        )
        return list(given) if are_several else [given]
    if isinstance(given, str):
        return list(values_from(name, given))
    if isinstance(given, Iterable):
        values = list(given)
        if not values:
            raise ConfigError(f"`{name}` needs one value or more, got none; {_FORMS}")
        return [one.item() if isinstance(one, np.generic) else one for one in values]
    return [given]


def values_from(name: str, text: str) -> list[int | float | bool | None]:
    """The values that a range stands for.

    Args:
        name: of the field, for messages.
        text: values with commas between them ("none,0.1"), each of which may be first:last:step
            ("0.1:0.5:0.1") or first:last:xfactor ("2**-7:2**-2:x2"). The last is among them where a
            whole number of steps leads there.

    Raises:
        ConfigError: it is written wrongly, or stands for more than 10,000 values.
    """
    values: list[int | float | bool | None] = []
    try:
        for part in text.split(","):
            if not part.strip():
                raise ConfigError("a value is missing")
            values += _progression(part) if ":" in part else [value_of(part)]
    except ConfigError as error:
        raise ConfigError(f"`{name}={text}` is no range: {error}; {_FORMS}") from None
    return values


def _progression(text: str) -> list[int | float | bool | None]:
    ends = text.split(":")
    if len(ends) != 3:
        raise ConfigError(f"`{text}` must have three parts, first:last:step")
    is_geometric = ends[2].strip().lower().startswith("x")
    ends[2] = ends[2].strip()[1:] if is_geometric else ends[2]
    first, last, step = (_exact(end) for end in ends)
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
    if num >= MAX_VALUES:
        raise ConfigError(f"`{text}` stands for more than {MAX_VALUES:,} values")
    # Exact until here: 0.1 + 2·0.1 is then the very 0.3 that a list would have.
    steps = range(math.floor(num + 1e-9) + 1)
    exact = [first * step**one if is_geometric else first + step * one for one in steps]
    are_whole = all(isinstance(value_of(end), int) for end in ends)
    return [int(value) if are_whole else float(value) for value in exact]


def _exact(text: str) -> Fraction:
    """The number that was written: 0.1, where a float is 0.1000000000000000055…"""
    value: Any = value_of(text)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and abs(value) < 1e308):
        raise ConfigError(f"a range is made of finite numbers, got '{text}'")
    try:
        return Fraction(text.strip() if value else 0)  # "1e-999999999" has a billion digits
    except ValueError:  # a power
        return Fraction(value)
