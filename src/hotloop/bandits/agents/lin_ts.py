"""Linear Thompson sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LinTS(KernelAgent):
    """Draws each arm's value from N(x·θ̂_a, v² xᵀ A_a⁻¹ x) and takes the largest.

    Agrawal and Goyal 2013, arXiv:1209.3352, algorithm 1, with a regression for each arm.
    """

    name: ClassVar[str] = "lin-ts"
    title: ClassVar[str] = "LinTS"
    needs_contexts: ClassVar[bool] = True
    scale: float = setting(1.0, low=0)
    """v, from 0."""
    ridge: float = setting(1.0, low=0, above=True)
    """A_a starts from so many times the identity, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import linear

        return Plan(
            parts=(linear.start_linear, linear.choose_lin_ts, linear.update_linear),
            parameters=(float(self.scale), float(self.ridge)),
            state_bytes=linear.state_bytes(environment.num_arms, environment.dimension),
        )
