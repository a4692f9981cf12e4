"""The base class of option groups: types, options that need others, and unknown options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from hotloop.base.registries import OPTION_OWNERS
from hotloop.errors import ConfigError, UnknownNameError, nearest, shortened
from hotloop.training.options.constraints import as_whole, check_value, type_hints
from hotloop.training.options.other_names import translate

AnyOptions = TypeVar("AnyOptions", bound="Options")

Requirements = Mapping[str, tuple[Any, ...]]
"""Values of other options without which an option has no effect. `SET`: any but None, 0, {}, …"""
RequirementTable = Mapping[str, Requirements]
"""Requirements of options, by name."""
SET: Final = ()


@dataclass(frozen=True, kw_only=True)
class Options:
    """A group of options, a frozen keyword-only dataclass.

    The constructor checks every value against the type of its field, and that no option is set
    that has no effect beside the others. It then calls the `check` of each class, base classes
    first, for further constraints between options.

    Attributes:
        requires: requirements of the group's options, by name.

    Raises:
        ConfigError: a value is invalid, an option has no effect, or options contradict each other.
        UnknownNameError: an option does not exist; the message suggests the nearest.
    """

    requires: ClassVar[RequirementTable] = {}

    def __new__(cls: type[AnyOptions], **options: Any) -> AnyOptions:
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownNameError(unknown_option_message(name, cls))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            value = as_whole(hint, _as_plain(getattr(self, name)))
            object.__setattr__(self, name, value)
            check_value(name, hint, value)
        for name, other, values in _unmet_requirements(self):
            value, actual = getattr(self, name), getattr(self, other)
            raise ConfigError(
                f"`{name}` {shortened(repr(value))} {'is for' if values else 'needs'} "
                f"{describe_requirement(other, values)}, got {actual!r}: "
                f"{'leave out' if values == (None,) else 'set'} `{other}`, or leave `{name}` at "
                f"{default_of(type(self), name)!r}"
            )
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)

    def value_of(self, name: str) -> Any:
        """Return the value of the option that an algorithm's declaration names."""
        return getattr(self, name)


def default_of(config_class: type[Options], name: str) -> Any:
    """Return an option's default."""
    field = next(field for field in fields(config_class) if field.name == name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def with_values(
    config_class: type[AnyOptions], stored: Mapping[str, Any], values: Mapping[str, Any]
) -> AnyOptions:
    """Return a configuration with values that replace stored ones.

    Options that have no effect any more, because of these values, return to their defaults.

    Args:
        config_class: the configuration class.
        stored: a value of every option.
        values: values that a user or a measurement has chosen.
    """

    def find_useless(options: Mapping[str, Any]) -> set[str]:
        trial = object.__new__(config_class)
        for name, value in options.items():
            object.__setattr__(trial, name, value)
        return {name for name, _, _ in _unmet_requirements(trial)}

    combined = {**stored, **values}
    useless = find_useless(combined) - find_useless(stored) - values.keys()
    return config_class(**combined | {name: default_of(config_class, name) for name in useless})


def describe_requirement(option: str, values: tuple[Any, ...]) -> str:
    """Return an option and its required values as text: "`backend` 'processes' or 'ray'"."""
    return " ".join([f"`{option}`", " or ".join(map(repr, values))]).rstrip()


def requirements_of(config_class: type[Options]) -> Iterator[tuple[str, Requirements]]:
    """Yield (option, its requirements) from the tables of all groups, those of bases first."""
    for group in reversed(config_class.__mro__):
        yield from vars(group).get("requires", {}).items()


def _unmet_requirements(options: Options) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Yield (option, required option, its possible values) of options without effect."""
    for name, requirements in requirements_of(type(options)):
        is_set = options.value_of(name) != default_of(type(options), name)
        for other, values in requirements.items():
            actual = options.value_of(other)
            if is_set and not (actual in values if values else actual):
                yield name, other, values


def _as_plain(value: Any) -> Any:
    """Return NumPy's numbers and paths as values that JSON can hold, also within containers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) is dict:
        return {name: _as_plain(item) for name, item in value.items()}
    return type(value)(map(_as_plain, value)) if type(value) in (list, tuple) else value


def unknown_option_message(name: str, config_class: type[Options]) -> str:
    """Return an error message: the most similar option, and the algorithms with this one."""
    known = [field.name for field in fields(config_class)]
    algorithm = config_class.__module__.rpartition(".")[2]
    owners = [owner for find_owners in OPTION_OWNERS for owner in find_owners(name)]
    note = f"; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it" if owners else ""
    return f"`{name}` is not an option of {algorithm}{note}" + (
        translate(name, known)
        or ("" if owners else nearest(name, known) or "; `--help` lists its options")
    )
