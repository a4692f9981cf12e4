"""The options of several policies."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from hotloop.errors import ConfigError
from hotloop.training.options.base import Options, RequirementTable
from hotloop.training.options.constraints import DataIf, Importable, JsonObject

_NAMES = re.compile(r"[\w-]+(, *[\w-]+)*")


def _are_names(value: Any) -> bool:
    """Return whether `policies` are names, without a function or an algorithm."""
    return isinstance(value, str) and _NAMES.fullmatch(value) is not None


def _are_numbers(value: Any) -> bool:
    """Return whether all `policy_options` are numbers, or lists of them."""
    if not (isinstance(value, dict) and all(isinstance(x, dict) for x in value.values())):
        return False
    values = [option for options in value.values() for option in options.values()]
    items = [x for option in values for x in (option if isinstance(option, list) else [option])]
    return all(isinstance(item, int | float | None) for item in items)


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(Options):
    """Several policies."""

    policies: Annotated[Importable, DataIf(_are_names)] | None = None
    """Names of several policies, such as adversary,agent, that learn at once in a PettingZoo
    environment. An agent has the policy whose name its own begins with. Add a colon and another
    algorithm, as in adversary,agent:dqn. Or `module:function`, which returns the policy of an
    agent's name."""
    policy_options: Annotated[JsonObject, DataIf(_are_numbers)] = field(default_factory=dict)
    """Other options of single policies by name, as JSON on the command line:
    '{"agent": {"learning_rate": 0.0003}}'. Those of another algorithm begin at its defaults."""

    requires: ClassVar[RequirementTable] = {
        "policies": {"inference": ("worker",), "self_play": (None,)}
    }

    def check(self) -> None:
        """Check that the options of single policies belong to several ones."""
        if self.policy_options and self.policies is None:
            raise ConfigError(
                f"`policy_options` need several policies, got {self.policy_options!r} and no "
                "`policies`: name the policies, or leave the options out"
            )
        if self.policies is not None and self.value_of("workers") == "auto":
            raise ConfigError(
                "several policies need a number of `workers`, got 'auto': set it, 0 for none"
            )

    @property
    def has_policies(self) -> bool:
        """Whether several policies are trained at once."""
        return self.policies is not None
