"""EXP3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class EXP3(KernelAgent):
    """Draws from weights that grow exponentially with rewards, each over its arm's probability.

    p = (1 − γ) w / Σw + γ / k, w_a ← w_a exp(γ r / (k p_a)) for the arm taken; rewards lie in [0,
    1]. Auer, Cesa-Bianchi, Freund, Schapire 2002, "The nonstochastic multiarmed bandit problem",
    fig. 1.
    """

    name: ClassVar[str] = "exp3"
    title: ClassVar[str] = "EXP3"
    needs_unit: ClassVar[bool] = True
    gamma: float = setting(0.1, low=0, high=1, above=True)
    """γ in (0, 1]."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import softmax

        return Plan(
            parts=(softmax.start_softmax, softmax.choose_exp3, softmax.update_exp3),
            parameters=(float(self.gamma),),
            state_bytes=softmax.STATE_BYTES_ARM * num_cells(environment.num_arms)
            + softmax.STATE_BYTES_LANE * LANES,
            needs_policy=True,
        )
