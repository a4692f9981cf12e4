"""Optimistic initial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import IN_REWARDS, setting, short
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class Optimistic(KernelAgent):
    """Greedy from estimates that are too high: every arm disappoints until it was tried often.

    Q ← Q + α (r − Q) from Q₁ = `initial_value`. Sutton & Barto 2018, section 2.6.
    """

    name: ClassVar[str] = "optimistic"
    initial_value: float = setting(5.0, unit=IN_REWARDS)
    """Q₁."""
    step_size: float | None = setting(0.1, low=0, high=1, above=True)
    """α in (0, 1]; None for sample averages, which forget Q₁ at an arm's first reward."""

    @property
    def label(self) -> str:
        """A short text for a legend."""
        rate = "sample averages" if self.step_size is None else f"α = {short(self.step_size)}"
        return f"optimistic, Q₁ = {short(self.initial_value)}, {rate}"

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import values

        return Plan(
            parts=(values.start_greedy, values.choose_greedy, values.update_greedy),
            parameters=(float(self.step_size or 0.0), float(self.initial_value), 0.0, 0.0),
            state_bytes=values.STATE_BYTES * num_cells(environment.num_arms),
        )
