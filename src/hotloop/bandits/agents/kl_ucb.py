"""KL-UCB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan
from hotloop.bandits.kernels.layout import LANES


@dataclass(frozen=True, kw_only=True)
class KLUCB(KernelAgent):
    """Takes the arm with the largest q such that N kl(mean, q) ≤ ln n + c ln ln n, after n pulls.

    kl is the divergence of Bernoulli distributions, so rewards lie in [0, 1]. Garivier and
    Cappé 2011, arXiv:1102.2490, algorithm 1.
    """

    name: ClassVar[str] = "kl-ucb"
    title: ClassVar[str] = "KL-UCB"
    needs_unit_rewards: ClassVar[bool] = True
    c: float = setting(0.0, low=0)
    """Weight of ln ln n, at least 0. Raise it to explore more."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import kl_ucb as kernels

        bytes_per_lane = kernels.STATE_BYTES_ARM * environment.num_arms + kernels.STATE_BYTES_LANE
        return KernelPlan(
            parts=(kernels.start_kl, kernels.choose_kl, kernels.update_kl),
            parameters=(float(self.c),),
            state_bytes=bytes_per_lane * LANES,
        )
