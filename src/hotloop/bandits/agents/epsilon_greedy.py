"""ε-greedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import REWARD_UNIT, format_setting, setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(KernelAgent):
    """Takes a random arm with probability ε, otherwise the arm with the largest Q.

    Q ← Q + α (r − Q), with α = `step_size`, or 1/N (sample averages). Sutton & Barto 2018, sections
    2.2 and 2.5. ε at step t is `epsilon` / (1 + `epsilon_decay` (t − 1)).
    """

    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = setting(0.1, low=0, high=1)
    """Probability of exploring at step 1, in [0, 1]. Raise it to explore more."""
    step_size: float | None = setting(None, low=0, high=1, excludes_low=True)
    """α in (0, 1], or None for sample averages. Set it if true values drift."""
    initial_value: float = setting(0.0, unit=REWARD_UNIT)
    """Initial Q."""
    epsilon_decay: float = setting(0.0, low=0)
    """Speed of ε's decay. 0 keeps ε constant."""

    @property
    def label(self) -> str:
        """The label in legends and tables."""
        parts = [f"ε-greedy, ε = {format_setting(self.epsilon)}" if self.epsilon else "greedy"]
        if self.epsilon_decay:
            parts.append(f"decay {format_setting(self.epsilon_decay)}")
        if self.step_size is not None:
            parts.append(f"α = {format_setting(self.step_size)}")
        if self.initial_value:
            parts.append(f"Q₁ = {format_setting(self.initial_value)}")
        return ", ".join(parts)

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import q_values

        return KernelPlan(
            parts=(q_values.start_greedy, q_values.choose_greedy, q_values.update_greedy),
            parameters=(
                float(self.step_size or 0.0),
                float(self.initial_value),
                float(self.epsilon),
                float(self.epsilon_decay),
            ),
            state_bytes=q_values.STATE_BYTES * num_cells(environment.num_arms),
            needs_policy_words=self.epsilon > 0,
        )
