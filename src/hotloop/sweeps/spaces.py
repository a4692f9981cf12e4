"""Spaces of options: `0.9,0.95`, `log:1e-5,1e-2`, `lin:0,1`, `int:16,256`, and their draws."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, UnknownNameError, nearest

FORMS = (
    "list values as `0.9,0.95` (with commas in them as `linear:3e-4,0;1e-4`), ranges as "
    "`log:1e-5,1e-2`, `lin:0,1` or `int:16,256`, ranges of a grid with their number, "
    "`log:1e-5,1e-2,7`"
)
MAX_POINTS = 100_000
_STEPS = re.compile(r"[\d.e*+-]+:[\d.e*+-]+:x?[\d.e*+-]+")
_KINDS = ("log", "lin", "int")
_NOT_SWEPT = ("seed", "run_dir", "runs_dir", "env_id", "total_timesteps")


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


@dataclass(frozen=True)
class Range:
    """Numbers that an option may take.

    Attributes:
        low, high: both are among them.
        is_log: whether their logarithm is drawn uniformly.
        is_int: whether they are whole.
        count: of a grid; None: it has no points.
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

    @property
    def points(self) -> tuple[Any, ...]:
        """Values of a grid, the ends among them."""
        assert self.count is not None
        space = np.geomspace if self.is_log else np.linspace
        points = space(self.low, self.high, self.count)
        if self.is_int:
            return tuple(dict.fromkeys(round(x) for x in points.tolist()))
        return tuple(float(f"{x:.6g}") for x in points)


Space = Mapping[str, "Choices | Range"]
"""Options, and the values that each may take."""


def value_of(name: str, text: str, config_class: type) -> Any:
    """Return the value of an option that a text stands for.

    Raises:
        ConfigError, UnknownNameError: it stands for none.
    """
    from hotloop.training.options.constraints import check_value, type_hints

    hint = type_hints(config_class)[name]
    candidates: list[Any] = [{"none": None, "true": True, "false": False}.get(text.lower(), text)]
    for kind in (float, int):
        with contextlib.suppress(ValueError):
            numbers = [kind(part) for part in text.split()]
            candidates[:0] = [tuple(numbers)] if len(numbers) > 1 else [numbers[0], tuple(numbers)]
    for candidate in candidates:
        with contextlib.suppress(ConfigError, UnknownNameError):
            check_value(name, hint, candidate)
            return candidate
    check_value(name, hint, candidates[0])
    return candidates[0]


def parse(texts: Mapping[str, Any], config_class: type) -> dict[str, Choices | Range]:
    """Return the space that is written down.

    Args:
        texts: of each option; of a file, a list may stand for choices.
        config_class: whose options they are.

    Raises:
        UnknownNameError: there is no such option.
        ConfigError: it is written wrongly.
    """
    known = [field.name for field in fields(config_class)]
    space: dict[str, Choices | Range] = {}
    for name, text in texts.items():
        if name not in known:
            hint = nearest(name, known) or ": `hotloop train ALGORITHM --help` lists them"
            raise UnknownNameError(f"a space must name options, got '{name}'{hint}")
        if name in _NOT_SWEPT:
            raise ConfigError(
                f"`{name}` can't be swept over: seeds are what `--seeds` is for, the rest is the "
                "same for all trials"
            )
        space[name] = _one(name, text, config_class)
    if not space:
        raise ConfigError(f"a sweep needs options to sweep over, got none: {FORMS}")
    return space


def _one(name: str, text: Any, config_class: type) -> Choices | Range:
    if isinstance(text, list):
        listed = [str(x) if not isinstance(x, list) else " ".join(map(str, x)) for x in text]
    elif not isinstance(text, str):
        listed = [str(text)]
    else:
        kind, has_kind, rest = text.partition(":")
        if has_kind and kind in _KINDS and ";" not in text:
            return _range(name, text, kind, rest, config_class)
        if _STEPS.fullmatch(text):  # as bandits have it
            from hotloop.bandits.grid.ranges import values_from

            numbers: list[Any] = values_from(name, text)
            text = ",".join(str(int(x) if x == int(x) else x) for x in numbers)
        listed = text.split(";" if ";" in text else ",")
    listed = [x.strip() for x in listed]
    listed = listed[:-1] if len(listed) > 1 and not listed[-1] else listed
    if not all(listed):
        raise ConfigError(f"`{name}={text}` has an empty value: {FORMS}")
    values = tuple(value_of(name, x, config_class) for x in listed)
    if any(values.count(x) > 1 for x in values):
        raise ConfigError(f"`{name}={text}` names a value twice: name each once")
    return Choices(values)


def _numbers(name: str, text: str, kind: str, rest: str) -> Range:
    """Return the range that is written down, of whatever option."""
    parts = [x.strip() for x in rest.split(",")]
    try:
        low, high = float(parts[0]), float(parts[1])
        count = int(parts[2]) if len(parts) == 3 else None
        is_right = len(parts) in (2, 3) and math.isfinite(low) and math.isfinite(high)
    except (ValueError, IndexError):
        is_right, low, high, count = False, 0.0, 0.0, None
    if not is_right:
        raise ConfigError(f"`{name}={text}` is no range: {FORMS}")
    if low >= high:
        raise ConfigError(f"`{name}={text}` must lead from the lower end to the higher one")
    if kind == "log" and low <= 0:
        raise ConfigError(f"`{name}={text}` must be above 0, for its logarithm")
    if count is not None and not 2 <= count <= MAX_POINTS:
        raise ConfigError(f"`{name}={text}` must have 2 to {MAX_POINTS:,} points")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"`{name}={text}` must have whole ends")
    return Range(low, high, is_log=kind == "log", is_int=kind == "int", count=count)


def _range(name: str, text: str, kind: str, rest: str, config_class: type) -> Range:
    found = _numbers(name, text, kind, rest)
    ends = [value_of(name, x.strip(), config_class) for x in rest.split(",")[:2]]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in ends):
        raise ConfigError(f"`{name}` is no number, so it has no ranges: list its values")
    if kind != "int" and _is_whole(name, config_class):
        low, high = rest.split(",")[:2]
        raise ConfigError(f"`{name}` is a whole number: write `{name}=int:{low},{high}`")
    return found


def _is_whole(name: str, config_class: type) -> bool:
    """Whether an option takes no fractions."""
    try:
        return not isinstance(value_of(name, "0.5", config_class), float)
    except (ConfigError, UnknownNameError):
        return True


def grid_size(space: Space) -> int:
    """Return how many points a grid has.

    Raises:
        ConfigError: a range has no points.
    """
    size = 1
    for name, one in space.items():
        if isinstance(one, Range) and one.count is None:
            raise ConfigError(
                f"a grid needs the number of points of `{name}`: write it behind the ends, as "
                "`log:1e-5,1e-2,7`, or take `--sampler random`"
            )
        size *= len(values(one))
    return size


def values(one: Choices | Range) -> tuple[Any, ...]:
    """Return the values that it has in a grid."""
    return one.values if isinstance(one, Choices) else one.points


def point(space: Space, number: int) -> dict[str, Any]:
    """Return a point of the grid, of which the last option changes first.

    Args:
        space: which.
        number: 0 to its size.
    """
    found: dict[str, Any] = {}
    for name in reversed(list(space)):
        listed = values(space[name])
        number, index = divmod(number, len(listed))
        found[name] = listed[index]
    return {name: found[name] for name in space}


def draw(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return a random point, which depends on the seed and its number alone."""
    rng = np.random.default_rng([seed, number])
    return {name: one.draw(rng) for name, one in space.items()}


def listed(name: str, text: str) -> str:
    """Return a range with its number of points as values with commas; all else as it is.

    For whom values alone are meant: `log:0.01,1,3` becomes `0.01,0.1,1.0`.

    Raises:
        ConfigError: it has no number of points, or is written wrongly.
    """
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        return text
    one = _numbers(name, text, kind, rest)
    if one.count is None and one.is_int:
        one = dataclasses.replace(one, count=int(one.high - one.low) + 1)
    grid_size({name: one})
    return ",".join(map(str, one.points))


def from_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that were kept as JSON, which knows no tuples."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in params.items()}


def texts_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return the spaces among arguments, `learning_rate=log:1e-5,1e-2`.

    Raises:
        ConfigError: one is there twice.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, _, text = argument.partition("=")
        name = name.strip().replace("-", "_")
        if name in found:
            raise ConfigError(f"`{name}` has two spaces, got '{argument}' too: leave one out")
        found[name] = text
    return found
