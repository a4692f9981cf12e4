"""EXP3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells
from hotloop.bandits.kernels.layout import LANES


@dataclass(frozen=True, kw_only=True)
class EXP3(KernelAgent):
    """Draws arms by weights that grow exponentially with the reward over the arm's probability.

    p = (1 − γ) w / Σw + γ / k. The chosen arm's weight becomes w_a exp(γ r / (k p_a)). Rewards lie
    in [0, 1]. Auer, Cesa-Bianchi, Freund, Schapire 2002, "The nonstochastic multiarmed bandit
    problem", fig. 1.
    """

    name: ClassVar[str] = "exp3"
    title: ClassVar[str] = "EXP3"
    needs_unit_rewards: ClassVar[bool] = True
    gamma: float = setting(0.1, low=0, high=1, excludes_low=True)
    """γ in (0, 1], the probability of a uniformly random arm. Raise it to explore more."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import softmax

        return KernelPlan(
            parts=(softmax.start_softmax, softmax.choose_exp3, softmax.update_exp3),
            parameters=(float(self.gamma),),
            state_bytes=softmax.STATE_BYTES_ARM * num_cells(environment.num_arms)
            + softmax.STATE_BYTES_LANE * LANES,
            needs_policy_words=True,
        )
