"""ε-greedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import IN_REWARDS, setting, short
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(KernelAgent):
    """With probability ε any arm, else the one with the largest Q.

    Q ← Q + α (r − Q), α = `step_size`, or 1/N (sample averages). Sutton & Barto 2018, sections 2.2
    and 2.5. ε at step t is `epsilon` / (1 + `epsilon_decay` (t − 1)).
    """

    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = setting(0.1, low=0, high=1)
    """Probability of exploring, 0 … 1."""
    step_size: float | None = setting(None, low=0, high=1, above=True)
    """α in (0, 1]; None for sample averages."""
    initial_value: float = setting(0.0, unit=IN_REWARDS)
    """What Q starts from."""
    epsilon_decay: float = setting(0.0, low=0)
    """How fast ε falls; 0: not at all."""

    @property
    def label(self) -> str:
        """A short text for a legend."""
        parts = [f"ε-greedy, ε = {short(self.epsilon)}" if self.epsilon else "greedy"]
        if self.epsilon_decay:
            parts.append(f"decay {short(self.epsilon_decay)}")
        if self.step_size is not None:
            parts.append(f"α = {short(self.step_size)}")
        if self.initial_value:
            parts.append(f"Q₁ = {short(self.initial_value)}")
        return ", ".join(parts)

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import values

        return Plan(
            parts=(values.start_greedy, values.choose_greedy, values.update_greedy),
            parameters=(
                float(self.step_size or 0.0),
                float(self.initial_value),
                float(self.epsilon),
                float(self.epsilon_decay),
            ),
            state_bytes=values.STATE_BYTES * num_cells(environment.num_arms),
            needs_policy=self.epsilon > 0,
        )
