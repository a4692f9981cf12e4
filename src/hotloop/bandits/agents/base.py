"""The base class of agents that kernels play."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hotloop.bandits.checked_settings import CheckedSettings
from hotloop.bandits.kernel_plans import KernelPlan
from hotloop.bandits.kernels.layout import LANES
from hotloop.errors import ConfigError

_MAX_STATE_BYTES = 1_000_000_000  # in each thread


@dataclass(frozen=True, kw_only=True)
class KernelAgent(CheckedSettings):
    """Settings of an agent, and its plan for the kernels."""

    needs_unit_rewards: ClassVar[bool] = False  # rewards in [0, 1]
    needs_contexts: ClassVar[bool] = False

    def plan(self, environment: Any, num_steps: int) -> KernelPlan:
        """Return the plan for the kernels.

        Raises:
            ConfigError: The agent can't play in this environment.
        """
        if self.needs_contexts and not environment.has_contexts:
            raise ConfigError(
                f"{self.name} needs contexts: play it in linear-contextual, not in "
                f"{environment.name}"
            )
        if self.needs_unit_rewards and not environment.has_unit_rewards:
            raise ConfigError(
                f"{self.name} needs rewards from 0 to 1: play it in bernoulli or in adversarial "
                f"with such rewards, not in {environment.name}"
            )
        plan = replace(
            self._plan(environment, num_steps), needs_unit_rewards=self.needs_unit_rewards
        )
        if plan.state_bytes > _MAX_STATE_BYTES:  # an agent with contexts has a matrix per arm
            raise ConfigError(
                f"{self.name} with {environment.num_arms} arms in {environment.dimension} "
                f"dimensions needs {plan.state_bytes / 1e9:.0f} GB for {LANES} runs: use fewer "
                "arms or dimensions"
            )
        return plan

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        raise NotImplementedError
