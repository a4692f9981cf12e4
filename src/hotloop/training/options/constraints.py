"""Constraints of options, written beside them: `num_steps: Count = 128`.

A constraint is a mark inside `typing.Annotated`, and the names here are types with such marks.
Plain types are checked too: `bool`, `int`, `float`, `str` and `Literal`; `| None` lets an option be
switched off. Other types are taken as they come.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from hotloop.envs.numbers import MOST_NUMBERS, is_name
from hotloop.errors import ConfigError, UnknownNameError, shortened
from hotloop.ops.schedules import Schedule, as_schedule


@dataclass(frozen=True)
class Constraint:
    """What an option's value must satisfy.

    Attributes:
        expected: the end of the sentence "`x` must …".
        accepts: whether a value does.
        is_scheduled: whether the value may be a schedule.
    """

    expected: str
    accepts: Callable[[Any], bool]
    is_scheduled: bool = False


@dataclass(frozen=True)
class Hint:
    """What is said at the end of an error about an option."""

    text: str


@dataclass(frozen=True)
class Mark:
    """A statement about an option that no value can break."""

    meaning: str


MAY_CHANGE: Final = Mark("may differ when a run is resumed: changes nothing that is learned")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_int(value)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _is_json_object(value: Any) -> bool:
    """What `config.json` could not hold could not be made again for evaluation."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def _are_counts(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(_is_int(x) and x >= 1 for x in value)


def _are_small(value: Any) -> bool:
    return all(x < _TOO_LARGE for x in (value if isinstance(value, (tuple, list)) else [value]))


def _are_trackers(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(x in ("tensorboard", "wandb") for x in value)


def _are_info_names(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and all(is_name(x) and "," not in x for x in value)
        and len(set(value)) == len(value) <= MOST_NUMBERS
    )


INTEGER: Final = Constraint("be an integer", _is_int)
POSITIVE: Final = Constraint("be positive and finite", lambda x: _is_finite(x) and x > 0)
NOT_NEGATIVE: Final = Constraint("be finite and not negative", lambda x: _is_finite(x) and x >= 0)
FRACTION: Final = Constraint("lie in [0, 1]", lambda x: _is_finite(x) and 0 <= x <= 1)
FINITE: Final = Constraint("be finite", _is_finite)

# What arrays are counted with: whatever is counted, there are never more.
_TOO_LARGE: Final = 2**63
_SMALL: Final = Constraint("be less than 2⁶³", _are_small)

Count = Annotated[int, Constraint("be a positive integer", lambda x: _is_int(x) and x >= 1), _SMALL]
Natural = Annotated[int, Constraint("be an integer ≥ 0", lambda x: _is_int(x) and x >= 0), _SMALL]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Fraction = Annotated[float, FRACTION]
Finite = Annotated[float, FINITE]
Seed = Annotated[
    int, Constraint("be an integer in [0, 2⁶³)", lambda x: _is_int(x) and 0 <= x < 2**63)
]
Sizes = Annotated[tuple[int, ...], Constraint("be positive integers", _are_counts), _SMALL]
Trackers = Annotated[
    tuple[Literal["tensorboard", "wandb"], ...],
    Constraint("name 'tensorboard', 'wandb' or both", _are_trackers),
]
InfoNames = Annotated[
    tuple[str, ...],
    Constraint(f"name up to {MOST_NUMBERS} keys of `info`, each once", _are_info_names),
]
JsonObject = Annotated[dict[str, Any], Constraint("be a dict that JSON can hold", _is_json_object)]
Factory: TypeAlias = str | Callable[..., Any]
Importable = Annotated[
    Factory,
    Constraint(
        "be `module:name`, a class or a function", lambda x: isinstance(x, str) or callable(x)
    ),
]
Device = Annotated[
    str,
    Constraint(
        "be 'auto', 'cpu', 'cuda' or one of 'cuda:0', 'cuda:1', …",
        lambda x: isinstance(x, str) and re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", x) is not None,
    ),
]


def _scheduled(constraint: Constraint, *, along: Constraint | None = None) -> Constraint:
    """Return a constraint on a number or on all values of a schedule.

    Args:
        constraint: on a number.
        along: on the values of a schedule that changes; by default the same.
    """

    def accepts(value: Any) -> bool:
        if _is_number(value):
            return constraint.accepts(value)
        schedule = as_schedule(value)
        rule = constraint if schedule.is_constant else along or constraint
        return all(map(rule.accepts, schedule.extremes()))

    return Constraint(constraint.expected, accepts, is_scheduled=True)


Scheduled: TypeAlias = float | str | Schedule | Callable[[float], float]
# A learning rate may fall to 0 in the end, but not be 0 all the time.
ScheduledPositive = Annotated[Scheduled, _scheduled(POSITIVE, along=NOT_NEGATIVE)]
ScheduledNotNegative = Annotated[Scheduled, _scheduled(NOT_NEGATIVE)]
ScheduledFraction = Annotated[Scheduled, _scheduled(FRACTION)]
ScheduledFinite = Annotated[Scheduled, _scheduled(FINITE)]

_UNIONS: Final = (Union, UnionType)
_PLAIN: Final[dict[Any, Constraint]] = {
    bool: Constraint("be True or False", lambda x: isinstance(x, bool)),
    int: INTEGER,
    float: Constraint("be a number", _is_number),
    str: Constraint("be a string", lambda x: isinstance(x, str)),
}


@functools.cache
def type_hints(config_class: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, with their marks."""
    hints = get_type_hints(config_class, include_extras=True)
    return {field.name: hints[field.name] for field in fields(config_class)}


@functools.cache
def may_change(config_class: type) -> frozenset[str]:
    """Return the names of the options that may differ when a run is resumed.

    A class that gives such an option another default need not repeat the mark.
    """
    groups = [group for group in config_class.__mro__ if is_dataclass(group)]
    hints = (hint for group in groups for hint in type_hints(group).items())
    return frozenset(name for name, hint in hints if MAY_CHANGE in _marks(hint))


@functools.cache
def scheduled(config_class: type) -> frozenset[str]:
    """Return the names of the options that may be schedules."""
    hints = type_hints(config_class).items()
    return frozenset(name for name, hint in hints if is_scheduled(hint))


def is_scheduled(hint: Any) -> bool:
    """Return whether an option of this type may be a schedule."""
    return any(isinstance(mark, Constraint) and mark.is_scheduled for mark in _marks(hint))


def check_value(name: str, hint: Any, value: Any) -> None:
    """Refuse a value that an option's type rules out.

    Raises:
        ConfigError: names the option, what was expected and what came.
        UnknownNameError: a schedule is the name of a function that there is not.
    """
    try:
        expected = _unmet(hint, value)
    except (ConfigError, UnknownNameError) as error:  # of a schedule
        raise type(error)(f"`{name}`: {error}") from error
    if expected:
        hints = "".join(f": {mark.text}" for mark in _marks(hint) if isinstance(mark, Hint))
        raise ConfigError(f"`{name}` must {expected}, got {shortened(repr(value))}{hints}")


def has_hint(hint: Any) -> bool:
    """Return whether something is said at the end of an error about an option of this type."""
    return any(isinstance(mark, Hint) for mark in _marks(hint))


def _unmet(hint: Any, value: Any) -> str:
    """Return what a value of this type must do and `value` does not, or the empty string."""
    if value is None:
        return "" if any(one in (NoneType, Any) for one in _within(hint)) else "be given"
    if get_origin(hint) in _UNIONS:
        unmet = [_unmet(one, value) for one in get_args(hint) if one is not NoneType]
        others = (sentence.removeprefix("be ") for sentence in unmet[1:])
        return "" if "" in unmet else " or ".join([unmet[0], *others])
    if get_origin(hint) is Literal:
        known = get_args(hint)
        return "" if value in known else f"be {_listed([repr(one) for one in known])}"
    if get_origin(hint) is Annotated:
        constraints = [mark for mark in hint.__metadata__ if isinstance(mark, Constraint)]
        if not constraints:
            return _unmet(hint.__origin__, value)
    else:
        constraints = [_PLAIN[hint]] if hint in _PLAIN else []
    return next((one.expected for one in constraints if not one.accepts(value)), "")


def _marks(hint: Any) -> list[Any]:
    """Return the marks of a type, and of those that it is a union of."""
    return [mark for one in _within(hint) for mark in getattr(one, "__metadata__", ())]


def _within(hint: Any) -> Iterator[Any]:
    """Yield a type, and those that it annotates or is a union of."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from _within(hint.__origin__)
    elif get_origin(hint) in _UNIONS:
        for one in get_args(hint):
            yield from _within(one)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
