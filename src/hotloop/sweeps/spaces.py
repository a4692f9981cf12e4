"""Spaces of a training's options: what texts stand for, draws, and grids."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hotloop.bandits.options import value_of as plain_value_of
from hotloop.errors import ConfigError, UnknownNameError, nearest
from hotloop.sweeps.grammar import FORMS, Choices, Range, parsed
from hotloop.sweeps.grammar import MAX_POINTS as MAX_POINTS
from hotloop.sweeps.grammar import texts_of as texts_of

_NOT_SWEPT = ("seed", "run_dir", "runs_dir", "env_id", "total_timesteps")
Space = Mapping[str, "Choices | Range"]
"""Options, and the values that each may take."""


def value_of(name: str, text: str, config_class: type) -> Any:
    """Return the value of an option that a text stands for.

    Raises:
        ConfigError, UnknownNameError: it stands for none.
    """
    from hotloop.training.options.constraints import check_value, type_hints

    hint = type_hints(config_class)[name]
    candidates: list[Any] = [text]
    with contextlib.suppress(ConfigError):  # else it is no number and no word
        parts = [plain_value_of(part) for part in text.split()]
        whole = [int(x) if isinstance(x, float) and x.is_integer() else x for x in parts]
        floats = [float(x) if type(x) is int else x for x in parts]
        for form in (floats, whole, parts):
            candidates[:0] = [form[0], tuple(form)] if len(form) == 1 else [tuple(form)]
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
        found = Choices(tuple(value_of(name, x, config_class) for x in listed))
    else:
        found = parsed(name, str(text), lambda x: value_of(name, x, config_class))
    if isinstance(found, Range):
        _check_range(name, str(text), found, config_class)
    elif any(found.values.count(x) > 1 for x in found.values):
        raise ConfigError(f"`{name}={text}` names a value twice: name each once")
    return found


def _check_range(name: str, text: str, found: Range, config_class: type) -> None:
    low, high = (x.strip() for x in text.partition(":")[2].split(",")[:2])
    ends = [value_of(name, x, config_class) for x in (low, high)]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in ends):
        raise ConfigError(f"`{name}` is no number, so it has no ranges: list its values")
    if not found.is_int and _is_whole(name, config_class):
        raise ConfigError(f"`{name}` is a whole number: write `{name}=int:{low},{high}`")


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
    return math.prod(len(one.points(name)) for name, one in space.items())


def point(space: Space, number: int) -> dict[str, Any]:
    """Return a point of the grid, of which the last option changes first.

    Args:
        space: which.
        number: 0 to its size.
    """
    found: dict[str, Any] = {}
    for name in reversed(list(space)):
        listed = space[name].points(name)
        number, index = divmod(number, len(listed))
        found[name] = listed[index]
    return {name: found[name] for name in space}


def draw(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return a random point, which depends on the seed and its number alone."""
    rng = np.random.default_rng([seed, number])
    return {name: one.draw(rng) for name, one in space.items()}


def from_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that were kept as JSON, which knows no tuples."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in params.items()}


def runs_alike(space: Space, config: Any, num_runs: int) -> int:
    """Return how many runs of a sweep share a compiled update, on average.

    Options that may be schedules are what it is given; by any other it may become another one.

    Args:
        space: of the options.
        config: that trials change.
        num_runs: of the sweep.
    """
    from hotloop.training.options.constraints import scheduled

    may, kinds = scheduled(type(config)), 1
    for name, one in space.items():
        if name not in may:
            kinds *= len(one.values) if isinstance(one, Choices) else num_runs
    return max(1, num_runs // kinds)
