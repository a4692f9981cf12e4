"""Search spaces of a training's options: parsing, random draws, and grids."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.space_syntax import MAX_POINTS as MAX_POINTS
from hotloop.base.space_syntax import Choices, Range
from hotloop.base.space_syntax import parse_assignments as parse_assignments
from hotloop.base.space_syntax import parse_domain as parse_domain
from hotloop.base.space_syntax import parse_value as parse_plain_value
from hotloop.errors import ConfigError, UnknownNameError, nearest, shortened
from hotloop.ops.schedules import names_function

if TYPE_CHECKING:
    from hotloop.experiments.results import Trial

_FIXED_OPTIONS = ("seed", "run_dir", "runs_dir", "env_id", "total_timesteps")
Space = Mapping[str, "Choices | Range"]
"""Option name → its possible values."""


def parse_value(name: str, text: str, config_class: type) -> Any:
    """Return the value of an option from its text.

    Raises:
        ConfigError, UnknownNameError: the option has no such value.
    """
    from hotloop.training.options.constraints import check_value, type_hints

    hint = type_hints(config_class)[name]
    candidates = _candidates(text)
    for candidate in candidates:
        with contextlib.suppress(ConfigError, UnknownNameError):
            check_value(name, hint, candidate)
            return candidate
    check_value(name, hint, candidates[0])
    return candidates[0]


def _candidates(text: str) -> list[Any]:
    """Return the values that a text may mean, depending on the option's type."""
    candidates: list[Any] = [text]
    with contextlib.suppress(ConfigError):  # neither a number nor a keyword
        parts = [parse_plain_value(part) for part in text.split()]
        integers = [int(x) if isinstance(x, float) and x.is_integer() else x for x in parts]
        floats = [float(x) if type(x) is int else x for x in parts]
        for form in (floats, integers, parts):
            candidates[:0] = [form[0], tuple(form)] if len(form) == 1 else [tuple(form)]
    return candidates


def parse(texts: Mapping[str, Any], config_class: type) -> dict[str, Choices | Range]:
    """Return a search space from text.

    Args:
        texts: option → its space as text or, from a file, a list of its values.
        config_class: configuration class with these options.

    Raises:
        UnknownNameError: there is no such option.
        ConfigError: the syntax or a value is wrong.
    """
    option_names = [field.name for field in fields(config_class)]
    space: dict[str, Choices | Range] = {}
    for name, text in texts.items():
        if name not in option_names:
            hint = nearest(name, option_names) or ": `hotloop train ALGORITHM --help` lists them"
            raise UnknownNameError(f"expected the name of an option, got '{name}'{hint}")
        if name in _FIXED_OPTIONS:
            raise ConfigError(
                f"`{name}` can't be swept over: pass a single value, or several seeds with "
                "`--seeds`"
            )
        space[name] = _parse_domain(name, text, config_class)
    return space


def options_beyond_data(texts: Mapping[str, Any], config_class: type) -> Iterator[str]:
    """Yield the options whose spaces have values that may name code, an address or a file.

    Nothing that the values name is imported.

    Raises:
        ConfigError, UnknownNameError: see `parse`.
    """
    plain: dict[str, Any] = {}
    for name, text in texts.items():
        values = _domain(name, text, str)
        if isinstance(values, Choices) and any(map(names_function, values.values)):
            yield name
        else:
            plain[name] = text
    is_data_of = data_check(config_class)
    for name, domain in parse(plain, config_class).items():
        if isinstance(domain, Choices) and not all(is_data_of(name, x) for x in domain.values):
            yield name


def value_text(value: Any) -> str:
    """Return an option's value as text on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _domain(name: str, text: Any, parse_item: Callable[[str], Any]) -> Choices | Range:
    if isinstance(text, list):
        return Choices(tuple(parse_item(value_text(x)) for x in text))
    return parse_domain(name, str(text), parse_item)


def _parse_domain(name: str, text: Any, config_class: type) -> Choices | Range:
    domain = _domain(name, text, lambda x: parse_value(name, x, config_class))
    if isinstance(domain, Range):
        _check_range(name, str(text), domain, config_class)
    elif any(domain.values.count(x) > 1 for x in domain.values):
        raise ConfigError(f"`{name}={text}` has a value twice: list each value once")
    return domain


def _check_range(name: str, text: str, domain: Range, config_class: type) -> None:
    low, high = (x.strip() for x in text.partition(":")[2].split(",")[:2])
    ends = [parse_value(name, x, config_class) for x in (low, high)]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in ends):
        raise ConfigError(f"`{name}` is not a number, so it can't have a range: list its values")
    if not domain.is_int and _is_integer(name, config_class):
        raise ConfigError(f"`{name}` is an integer: write `{name}=int:{low},{high}`")


def _is_integer(name: str, config_class: type) -> bool:
    try:
        return not isinstance(parse_value(name, "0.5", config_class), float)
    except (ConfigError, UnknownNameError):
        return True


def stored_space(path: Path, texts: Mapping[str, Any], trials: Sequence[Trial]) -> Space:
    """Return the space of a stored sweep without its configuration class, whose module needs torch.

    Values get the types that they have in the trials, which are checked.

    Raises:
        ConfigError: a trial sets another option, or a value that may name code.
    """
    space = {
        name: _domain(
            name, text, partial(_parse_like, [from_json(x.params).get(name) for x in trials])
        )
        for name, text in texts.items()
    }

    def is_plain(_: str, value: Any) -> bool:
        parts = value if isinstance(value, list) else [value]
        return not any(isinstance(x, dict) or (type(x) is str and names_function(x)) for x in parts)

    check_trials(path, trials, space, is_plain)
    return space


def check_trials(
    path: Path, trials: Iterable[Trial], space: Space, is_data: Callable[[str, Any], bool]
) -> None:
    """Check that stored trials only set options of the space, to its values or to data.

    Args:
        path: the file.
        trials: the trials.
        space: the search space.
        is_data: function that returns whether a value of an option can't run code.

    Raises:
        ConfigError: a trial sets something else.
    """
    for trial in trials:
        changed = [options.items() for options in trial.attrs.get("became", {}).values()]
        for name, value in [*trial.params.items(), *itertools.chain(*changed)]:
            if not allows(space, name, value, is_data):
                raise ConfigError(
                    f"{path} is damaged: trial {trial.number} sets `{name}` to "
                    f"{shortened(repr(value))}, which is not in the space of the sweep: restore "
                    "the file, or start another sweep"
                )


def allows(space: Space, name: str, value: Any, is_data: Callable[[str, Any], bool]) -> bool:
    """Return whether a space has this option, and the stored value is in it or can't run code."""
    domain = space.get(name)
    choices = domain.values if isinstance(domain, Choices) else ()
    known = tuple(value) if isinstance(value, list) else value
    return domain is not None and (known in choices or is_data(name, value))


def data_check(config_class: type) -> Callable[[str, Any], bool]:
    """Return the function for `check_trials` that knows the types of the options."""
    from hotloop.training.options.constraints import is_data, type_hints

    hints = type_hints(config_class)
    return lambda name, value: is_data(hints[name], value)


def _parse_like(values: Sequence[Any], text: str) -> Any:
    """Return the value that a text means. Other values of the option determine its type."""
    texts, kinds = set(map(repr, values)), set(map(type, values))
    kinds |= {int} if float in kinds else set()
    candidates = _candidates(text)
    equal = [x for x in candidates if repr(x) in texts]
    of_kinds = [x for x in candidates if type(x) in kinds]
    return [*equal, *of_kinds, *candidates][0]


def grid_size(space: Space) -> int:
    """Return the number of points of a grid.

    Raises:
        ConfigError: a range has no number of points.
    """
    return math.prod(len(domain.points(name)) for name, domain in space.items())


def point(space: Space, number: int) -> dict[str, Any]:
    """Return point `number`, from 0, of the grid, in which the last option changes fastest."""
    values: dict[str, Any] = {}
    for name in reversed(list(space)):
        choices = space[name].points(name)
        number, index = divmod(number, len(choices))
        values[name] = choices[index]
    return {name: values[name] for name in space}


def draw(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return a random point that depends only on the seed and its number."""
    rng = np.random.default_rng([seed, number])
    return {name: domain.draw(rng) for name, domain in space.items()}


def from_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return options from JSON, with lists as tuples."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in params.items()}


def runs_per_update(space: Space, config: Any, num_runs: int) -> int:
    """Return how many of a sweep's runs share a compiled update on average.

    Options that may be schedules are inputs of the update. Another value of any other option may
    need another update.
    """
    from hotloop.training.options.constraints import scheduled_options

    schedulable, num_updates = scheduled_options(type(config)), 1
    for name, domain in space.items():
        if name not in schedulable:
            num_updates *= len(domain.values) if isinstance(domain, Choices) else num_runs
    return max(1, num_runs // num_updates)
