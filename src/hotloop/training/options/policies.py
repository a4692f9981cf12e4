"""The option of several policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hotloop.training.options.base import Options, RequirementTable
from hotloop.training.options.constraints import Importable


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(Options):
    """Several policies."""

    policies: Importable | None = None
    """Names of several policies, such as adversary,agent, that learn at once in a PettingZoo
    environment. An agent has the policy whose name its own begins with. Or `module:function`, which
    returns the policy of an agent's name."""

    requires: ClassVar[RequirementTable] = {"policies": {"workers": (0,), "self_play": (None,)}}

    @property
    def has_policies(self) -> bool:
        """Whether several policies are trained at once."""
        return self.policies is not None
