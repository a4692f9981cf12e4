"""KL-UCB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.plan import Plan


@dataclass(frozen=True, kw_only=True)
class KLUCB(KernelAgent):
    """The arm with the largest q for which N kl(mean, q) ≤ ln n + c ln ln n, n the pulls so far.

    kl is that of Bernoulli distributions: rewards lie in [0, 1]. Garivier and Cappé 2011,
    arXiv:1102.2490, algorithm 1.
    """

    name: ClassVar[str] = "kl-ucb"
    title: ClassVar[str] = "KL-UCB"
    needs_unit: ClassVar[bool] = True
    c: float = setting(0.0, low=0)
    """Weight of ln ln n, from 0."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import divergence as kernels

        each = kernels.STATE_BYTES_ARM * environment.num_arms + kernels.STATE_BYTES_LANE
        return Plan(
            parts=(kernels.start_kl, kernels.choose_kl, kernels.update_kl),
            parameters=(float(self.c),),
            state_bytes=each * LANES,
        )
