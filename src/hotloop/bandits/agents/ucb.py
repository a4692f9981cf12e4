"""UCB of Sutton & Barto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import format_setting, setting
from hotloop.bandits.kernel_plans import KernelPlan, make_table, num_cells


@dataclass(frozen=True, kw_only=True)
class UCB(KernelAgent):
    """Takes the arm with the largest Q + c √(ln t / N), after every arm once.

    Sutton & Barto 2018, eq. 2.10.
    """

    name: ClassVar[str] = "ucb"
    c: float = setting(2.0, low=0)
    """Degree of exploration, at least 0. Raise it to explore more."""
    step_size: float | None = setting(None, low=0, high=1, excludes_low=True)
    """α in (0, 1], or None for sample averages. Set it if true values drift."""

    @property
    def label(self) -> str:
        """The label in legends and tables."""
        rate = "" if self.step_size is None else f", α = {format_setting(self.step_size)}"
        return f"UCB, c = {format_setting(self.c)}{rate}"

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import q_values

        roots = make_table(num_steps, lambda pulls: pulls**-0.5 if self.c else 0.0, at_zero=1.0)
        return KernelPlan(
            parts=(q_values.start_ucb, q_values.choose_ucb, q_values.update_ucb),
            parameters=(float(self.step_size or 0.0), 0.0, float(self.c), 0, roots.ctypes.data),
            arrays=(roots,),
            state_bytes=(q_values.STATE_BYTES + 4) * num_cells(environment.num_arms),
        )
