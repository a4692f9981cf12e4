"""Constraints of options, part of their types: `num_steps: Count = 128`.

A constraint is a mark inside `typing.Annotated`, and this module defines types with such marks.
Plain types are checked too: `bool`, `int`, `float`, `str` and `Literal`. `| None` allows disabling
an option. Other types are not checked.
"""

from __future__ import annotations

import functools
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

from hotloop.base.documents import is_json_object
from hotloop.envs.episode_metrics import MAX_METRICS, is_metric_name
from hotloop.errors import ConfigError, UnknownNameError, shortened
from hotloop.ops.schedules import Schedule, as_schedule, names_function


@dataclass(frozen=True)
class Constraint:
    """A constraint on an option's value.

    Attributes:
        expected: the end of the sentence "`x` must …".
        accepts: a function that returns whether a value is valid.
        is_scheduled: whether the value may be a schedule.
    """

    expected: str
    accepts: Callable[[Any], bool]
    is_scheduled: bool = False


@dataclass(frozen=True)
class Hint:
    """A hint at the end of an error about an option."""

    text: str


@dataclass(frozen=True)
class OptionMark:
    """A property of an option, independent of its value."""

    meaning: str


@dataclass(frozen=True)
class DataIf:
    """A mark of an option whose values may name code: those that don't."""

    accepts: Callable[[Any], bool]


DATA: Final = OptionMark("holds data: no valid value names code, an address or a file to use")
MAY_CHANGE: Final = OptionMark("may differ when a run is resumed: does not change the weights")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_int(value)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _are_counts(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(_is_int(x) and x >= 1 for x in value)


def _are_below_limit(value: Any) -> bool:
    return all(x < _TOO_LARGE for x in (value if isinstance(value, (tuple, list)) else [value]))


def _are_amounts(value: Any) -> bool:
    return all(NOT_NEGATIVE.accepts(x) for x in value.values())


def _are_trackers(value: Any) -> bool:
    if not isinstance(value, (tuple, list)):
        return False
    if not value:  # most runs have none, and import no trackers
        return True
    from hotloop.runs.tracking import tracker_names

    known = tracker_names()
    return all(x in known for x in value)


def _are_info_names(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and all(is_metric_name(x) and "," not in x for x in value)
        and len(set(value)) == len(value) <= MAX_METRICS
    )


INTEGER: Final = Constraint("be an integer", _is_int)
POSITIVE: Final = Constraint("be positive and finite", lambda x: _is_finite(x) and x > 0)
NOT_NEGATIVE: Final = Constraint("be finite and not negative", lambda x: _is_finite(x) and x >= 0)
FRACTION: Final = Constraint("lie in [0, 1]", lambda x: _is_finite(x) and 0 <= x <= 1)
FINITE: Final = Constraint("be a finite number", _is_finite)


def between(least: int, most: int) -> Constraint:
    """Return the constraint of integers from `least` to `most`."""
    return Constraint(
        f"be an integer from {least} to {most:,}", lambda x: _is_int(x) and least <= x <= most
    )


# The limit of array indices, and thus of every count.
_TOO_LARGE: Final = 2**63
_SMALL: Final = Constraint("be less than 2⁶³", _are_below_limit)

Count = Annotated[int, Constraint("be a positive integer", lambda x: _is_int(x) and x >= 1), _SMALL]
Natural = Annotated[int, Constraint("be an integer ≥ 0", lambda x: _is_int(x) and x >= 0), _SMALL]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Fraction = Annotated[float, FRACTION]
Finite = Annotated[float, FINITE]
Seed = Annotated[
    int,
    Constraint("be an integer in [0, 2⁶³)", lambda x: _is_int(x) and 0 <= x < 2**63),
]
Sizes = Annotated[tuple[int, ...], Constraint("be positive integers", _are_counts), _SMALL, DATA]
Names = Annotated[
    tuple[str, ...],
    Constraint(
        "be names", lambda x: isinstance(x, (tuple, list)) and all(isinstance(y, str) for y in x)
    ),
]
Trackers = Annotated[
    tuple[str, ...],
    Constraint("name trackers: 'tensorboard', 'wandb', 'mlflow', 'trackio'", _are_trackers),
    Hint("a package adds others, see docs/tracking.md"),
    DATA,
]
InfoNames = Annotated[
    tuple[str, ...],
    Constraint(f"name up to {MAX_METRICS} keys of `info`, each once", _are_info_names),
    DATA,
]
JsonObject = Annotated[dict[str, Any], Constraint("be a dict that JSON can hold", is_json_object)]
Resources = Annotated[
    JsonObject,
    Constraint("be a dict of numbers ≥ 0", _are_amounts),
    Hint("pass '{\"num_cpus\": 1}'"),
    DATA,
]
Factory: TypeAlias = str | Callable[..., Any]
Environment = Annotated[
    Factory,
    Constraint(
        "be an id, or a class or function that makes the environment",
        lambda x: isinstance(x, str) or callable(x),
    ),
]
Importable = Annotated[
    Factory,
    Constraint(
        "be `module:name`, a class or a function", lambda x: isinstance(x, str) or callable(x)
    ),
]
DATASET_PREFIX = "minari:"
DATASET_NAME = re.compile(r"(?!./[^/]*$)[\w-]+(/[\w-]+)*-v\d+", re.ASCII)
"""Name of a data set of Minari, without the prefix. A namespace has two characters or more."""
DatasetName = Annotated[
    str,
    Constraint(
        "name a local data set of Minari, such as 'minari:mujoco/hopper/expert-v0'",
        lambda x: (
            isinstance(x, str)
            and x.startswith(DATASET_PREFIX)
            and DATASET_NAME.fullmatch(x.removeprefix(DATASET_PREFIX)) is not None
        ),
    ),
]
Device = Annotated[
    str,
    Constraint(
        "be 'auto', 'cpu', 'cuda' or one of 'cuda:0', 'cuda:1', …",
        lambda x: isinstance(x, str) and re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", x) is not None,
    ),
    DATA,
]


def _scheduled(constraint: Constraint, *, along: Constraint | None = None) -> Constraint:
    """Return a constraint for a number, or for a schedule with `along` for all its values."""

    def accepts(value: Any) -> bool:
        if _is_number(value):
            return constraint.accepts(value)
        schedule = as_schedule(value)
        rule = constraint if schedule.is_constant else along or constraint
        return all(map(rule.accepts, schedule.extremes()))

    return Constraint(constraint.expected, accepts, is_scheduled=True)


Scheduled: TypeAlias = float | str | Schedule | Callable[[float], float]
# A learning rate may decay to 0, but must not be 0 throughout.
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


_WORDLESS: Final = (bool, int, float, NoneType)


@functools.cache
def type_hints(config_class: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, including their marks."""
    hints = get_type_hints(config_class, include_extras=True)
    return {field.name: hints[field.name] for field in fields(config_class)}


@functools.cache
def changeable_options(config_class: type) -> frozenset[str]:
    """Return the names of the options that may differ when a run is resumed.

    A class that overrides an option's default need not repeat the mark.
    """
    groups = [group for group in config_class.__mro__ if is_dataclass(group)]
    hints = (hint for group in groups for hint in type_hints(group).items())
    return frozenset(name for name, hint in hints if MAY_CHANGE in _marks(hint))


@functools.cache
def scheduled_options(config_class: type) -> frozenset[str]:
    """Return the names of the options that may be schedules."""
    hints = type_hints(config_class).items()
    return frozenset(name for name, hint in hints if is_scheduled(hint))


def is_scheduled(hint: Any) -> bool:
    """Return whether an option of this type may be a schedule."""
    return any(isinstance(mark, Constraint) and mark.is_scheduled for mark in _marks(hint))


def check_value(name: str, hint: Any, value: Any) -> None:
    """Check a value against an option's type.

    Raises:
        ConfigError: the value is invalid.
        UnknownNameError: a schedule names a function that does not exist.
    """
    try:
        expected = _unmet_requirement(hint, value)
    except (ConfigError, UnknownNameError) as error:  # the schedule is invalid
        raise type(error)(f"`{name}`: {error}") from error
    if expected:
        if value == 0 and type(value) is not bool and type(None) in leaf_types(hint):
            expected += " or None"
        hints = "".join(f": {mark.text}" for mark in _marks(hint) if isinstance(mark, Hint))
        if tuple[type(value), ...] in leaf_types(hint):
            hints = f": pass a list, [{value!r}]"
        raise ConfigError(f"`{name}` must {expected}, got {shortened(repr(value))}{hints}")


def as_whole(hint: Any, value: Any) -> Any:
    """Return a whole float such as 1e5 as an integer, if the option takes no floats."""
    if isinstance(value, float) and value.is_integer():
        kinds = leaf_types(hint)
        return int(value) if int in kinds and float not in kinds else value
    return value


def leaf_types(hint: Any) -> set[Any]:
    """Return the types that a value may have, without marks: {int, NoneType} of `Count | None`."""
    branches = (Annotated, *_UNIONS)
    return {kind for kind in _nested_types(hint) if get_origin(kind) not in branches}


def _unmet_requirement(hint: Any, value: Any) -> str:
    """Return the unmet requirement of a value, such as "be positive", or the empty string."""
    if value is None:
        return "" if any(part in (NoneType, Any) for part in _nested_types(hint)) else "be given"
    if get_origin(hint) in _UNIONS:
        unmet = [_unmet_requirement(part, value) for part in get_args(hint) if part is not NoneType]
        alternatives = (sentence.removeprefix("be ") for sentence in unmet[1:])
        return "" if "" in unmet else " or ".join([unmet[0], *alternatives])
    if get_origin(hint) is Literal:
        known = get_args(hint)
        return (
            "" if value in known else f"be {_join_alternatives([repr(choice) for choice in known])}"
        )
    if get_origin(hint) is Annotated:
        constraints = [mark for mark in hint.__metadata__ if isinstance(mark, Constraint)]
        if not constraints:
            return _unmet_requirement(hint.__origin__, value)
    else:
        constraints = [_PLAIN[hint]] if hint in _PLAIN else []
    return next((rule.expected for rule in constraints if not rule.accepts(value)), "")


def is_data(hint: Any, value: Any) -> bool:
    """Return whether it is safe to use a stored value that anyone may have written.

    Numbers, booleans and known words run no code. A type of strings or containers is only data if
    it has the mark `DATA`, or if a mark `DataIf` accepts the value.
    """
    if is_scheduled(hint) and isinstance(value, str):
        return not names_function(value)
    if any(isinstance(mark, DataIf) and mark.accepts(value) for mark in _marks(hint)):
        return True
    is_plain = all(kind in _WORDLESS or get_origin(kind) is Literal for kind in leaf_types(hint))
    if not (is_plain or DATA in _marks(hint) or (is_scheduled(hint) and _is_number(value))):
        return value in (None, {}, [], ())
    return not _unmet_requirement(hint, value)


def _marks(hint: Any) -> list[Any]:
    return [mark for part in _nested_types(hint) for mark in getattr(part, "__metadata__", ())]


def _nested_types(hint: Any) -> Iterator[Any]:
    """Yield a type, the type that it annotates, and the members of a union."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from _nested_types(hint.__origin__)
    elif get_origin(hint) in _UNIONS:
        for part in get_args(hint):
            yield from _nested_types(part)


def _join_alternatives(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
