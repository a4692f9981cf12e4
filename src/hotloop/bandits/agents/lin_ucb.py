"""LinUCB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LinUCB(KernelAgent):
    """The arm with the largest x·θ̂_a + α √(xᵀ A_a⁻¹ x), a ridge regression for each arm.

    Li et al. 2010, arXiv:1003.0146, algorithm 1.
    """

    name: ClassVar[str] = "lin-ucb"
    title: ClassVar[str] = "LinUCB"
    needs_contexts: ClassVar[bool] = True
    alpha: float = setting(1.0, low=0)
    """Degree of exploration, from 0."""
    ridge: float = setting(1.0, low=0, above=True)
    """A_a starts from so many times the identity, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import linear

        return Plan(
            parts=(linear.start_linear, linear.choose_lin_ucb, linear.update_linear),
            parameters=(float(self.alpha), float(self.ridge)),
            state_bytes=linear.state_bytes(environment.num_arms, environment.dimension),
        )
