"""Upper confidence bounds, those of Auer et al."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.plan import Plan, num_cells, table


@dataclass(frozen=True, kw_only=True)
class UCB1(KernelAgent):
    """The arm with the largest mean + scale √(ln n / N), n the pulls so far.

    Auer, Cesa-Bianchi, Fischer 2002, "Finite-time analysis of the multiarmed bandit problem", fig.
    1: the scale is √2 there, for rewards in [0, 1].
    """

    name: ClassVar[str] = "ucb1"
    title: ClassVar[str] = "UCB1"
    scale: float = setting(math.sqrt(2.0), low=0)
    """What the confidence radius is multiplied by, from 0."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import values

        roots = table(num_steps, lambda pulls: pulls**-0.5 if self.scale else 0.0, at_zero=1.0)
        return Plan(
            parts=(values.start_ucb, values.choose_ucb, values.update_ucb),
            parameters=(0.0, 0.0, float(self.scale), 1, roots.ctypes.data),
            arrays=(roots,),
            state_bytes=(values.STATE_BYTES + 4) * num_cells(environment.num_arms),
        )
