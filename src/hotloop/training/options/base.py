"""The base class of option groups: type checks, and errors for unknown options."""

from __future__ import annotations

import importlib
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hotloop.errors import UnknownNameError, nearest
from hotloop.training.options.constraints import check_value, type_hints
from hotloop.training.options.other_names import translate

AnyOptions = TypeVar("AnyOptions", bound="Options")


class Options:
    """A group of options, a frozen keyword-only dataclass.

    The constructor checks every value against the type of its field. It then calls the `check` of
    each class, base classes first, for constraints between options.

    Raises:
        ConfigError: a value is invalid, or options contradict each other.
        UnknownNameError: an option does not exist; the message suggests the nearest.
    """

    if TYPE_CHECKING:  # options that are read across groups
        device: str
        num_envs: int
        total_timesteps: int

        @property
        def has_workers(self) -> bool: ...
        @property
        def total_envs(self) -> int: ...
        def require_fragment_memory(self, num_steps: int, name: str) -> None: ...

    def __new__(cls: type[AnyOptions], **options: Any) -> AnyOptions:
        known = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]
        for name in options:
            if name not in known:
                raise UnknownNameError(unknown_option_message(name, cls))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            value = _as_plain(getattr(self, name))
            object.__setattr__(self, name, value)
            check_value(name, hint, value)
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)


def _as_plain(value: Any) -> Any:
    """Return NumPy's numbers and paths as values that JSON can hold, also within containers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) is dict:
        return {name: _as_plain(item) for name, item in value.items()}
    return type(value)(map(_as_plain, value)) if type(value) in (list, tuple) else value


def unknown_option_message(name: str, config_class: type) -> str:
    """Return an error message with the nearest option and the algorithms that have it."""
    known = [field.name for field in fields(config_class)]
    algorithm = config_class.__module__.rpartition(".")[2]
    # Import by name, only after an error, since the algorithms import this module.
    algorithms = importlib.import_module("hotloop.algorithms")
    configs = {other: algorithms.find(other).config for other in algorithms.ALGORITHMS}
    owners = [other for other, config in configs.items() if name in type_hints(config)]
    note = ""
    if owners:
        note = f"; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
    return f"`{name}` is not an option of {algorithm}'s {config_class.__name__}{note}" + (
        translate(name, known)
        or nearest(name, known)
        or ("" if owners else "; `--help` lists its options")
    )
