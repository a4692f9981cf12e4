"""UCB1 of Auer et al."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan, make_table, num_cells


@dataclass(frozen=True, kw_only=True)
class UCB1(KernelAgent):
    """Takes the arm with the largest mean + scale √(ln n / N), after n pulls.

    Auer, Cesa-Bianchi, Fischer 2002, "Finite-time analysis of the multiarmed bandit problem", fig.
    1. Their scale is √2, for rewards in [0, 1].
    """

    name: ClassVar[str] = "ucb1"
    title: ClassVar[str] = "UCB1"
    scale: float = setting(math.sqrt(2.0), low=0)
    """Factor of the confidence radius, at least 0. Raise it to explore more."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import q_values

        roots = make_table(num_steps, lambda pulls: pulls**-0.5 if self.scale else 0.0, at_zero=1.0)
        return KernelPlan(
            parts=(q_values.start_ucb, q_values.choose_ucb, q_values.update_ucb),
            parameters=(0.0, 0.0, float(self.scale), 1, roots.ctypes.data),
            arrays=(roots,),
            state_bytes=(q_values.STATE_BYTES + 4) * num_cells(environment.num_arms),
        )
