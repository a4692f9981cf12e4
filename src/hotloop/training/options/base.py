"""Base of all groups of options: checks by the types, and answers to unknown names."""

from __future__ import annotations

import importlib
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from hotloop.errors import UnknownNameError, nearest
from hotloop.training.options.constraints import check_value, type_hints

AnyOptions = TypeVar("AnyOptions", bound="Options")


class Options:
    """A group of options, a frozen keyword-only dataclass.

    When one is made, every value is checked against the type of its field. Then the `check` of each
    class is called, the base's first, for what options must satisfy together.

    Raises:
        ConfigError: a value is one that no run could use, or options contradict each other.
        UnknownNameError: there is no such option; says which is nearest, and who has it.
    """

    if TYPE_CHECKING:  # options of other groups that groups read
        device: str
        num_envs: int
        total_timesteps: int

        @property
        def has_workers(self) -> bool: ...
        @property
        def total_envs(self) -> int: ...
        def need_fragments(self, num_steps: int, name: str) -> None: ...

    def __new__(cls: type[AnyOptions], **options: Any) -> AnyOptions:
        known = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]
        for name in options:
            if name not in known:
                raise UnknownNameError(unknown_option(name, cls))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            if isinstance(getattr(self, name), os.PathLike):  # stands for its text
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
            check_value(name, hint, getattr(self, name))
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)


def unknown_option(name: str, config_class: type) -> str:
    """Return what to say of a name that is no option's: the nearest, and who has it."""
    known = [field.name for field in fields(config_class)]
    algorithm = config_class.__module__.rpartition(".")[2]
    # By name, since algorithms stand above: imported only once something is wrong.
    algorithms = importlib.import_module("hotloop.algorithms")
    configs = {other: algorithms.find(other).config for other in algorithms.ALGORITHMS}
    having = [other for other, config in configs.items() if name in type_hints(config)]
    owners = ""
    if having:
        owners = f"; {', '.join(having)} {'has' if len(having) == 1 else 'have'} it"
    return f"`{name}` is no option of {algorithm}'s {config_class.__name__}{owners}" + (
        nearest(name, known) or ("" if having else "; `--help` lists those that it has")
    )
