"""Agents that kernels play: what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hotloop.bandits.described import Described
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.plan import Plan
from hotloop.errors import ConfigError

_MOST_STATE = 1_000_000_000  # bytes, of one thread


@dataclass(frozen=True, kw_only=True)
class KernelAgent(Described):
    """The settings of an agent, and how it is laid out for the kernels."""

    needs_unit: ClassVar[bool] = False  # rewards in 0 … 1
    needs_contexts: ClassVar[bool] = False

    def plan(self, environment: Any, num_steps: int) -> Plan:
        """How it plays.

        Raises:
            ConfigError: it can't play in this environment.
        """
        if self.needs_contexts and not environment.has_contexts:
            raise ConfigError(
                f"{self.name} needs contexts: play it in linear-contextual, not in "
                f"{environment.name}"
            )
        if self.needs_unit and not environment.is_unit:
            raise ConfigError(
                f"{self.name} needs rewards from 0 to 1: play it in bernoulli or in adversarial "
                f"with such rewards, not in {environment.name}"
            )
        plan = replace(self._plan(environment, num_steps), needs_unit=self.needs_unit)
        if plan.state_bytes > _MOST_STATE:  # matrices, of those that need contexts
            raise ConfigError(
                f"{self.name} with {environment.num_arms} arms in {environment.dimension} "
                f"dimensions needs {plan.state_bytes / 1e9:.0f} GB for {LANES} runs: use fewer "
                "arms or dimensions"
            )
        return plan

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        raise NotImplementedError
