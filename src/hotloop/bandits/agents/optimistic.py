"""Optimistic initial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import REWARD_UNIT, format_setting, setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells


@dataclass(frozen=True, kw_only=True)
class Optimistic(KernelAgent):
    """Takes the arm with the largest Q, from initial estimates so high that it tries every arm.

    Q ← Q + α (r − Q) from Q₁ = `initial_value`. Sutton & Barto 2018, section 2.6.
    """

    name: ClassVar[str] = "optimistic"
    initial_value: float = setting(5.0, unit=REWARD_UNIT)
    """Q₁. Set it above all true values. Raise it to explore longer."""
    step_size: float | None = setting(0.1, low=0, high=1, excludes_low=True)
    """α in (0, 1], or None for sample averages, which drop Q₁ at an arm's first reward."""

    @property
    def label(self) -> str:
        """The label in legends and tables."""
        rate = (
            "sample averages" if self.step_size is None else f"α = {format_setting(self.step_size)}"
        )
        return f"optimistic, Q₁ = {format_setting(self.initial_value)}, {rate}"

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import q_values

        return KernelPlan(
            parts=(q_values.start_greedy, q_values.choose_greedy, q_values.update_greedy),
            parameters=(float(self.step_size or 0.0), float(self.initial_value), 0.0, 0.0),
            state_bytes=q_values.STATE_BYTES * num_cells(environment.num_arms),
        )
