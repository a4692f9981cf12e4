"""LinUCB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan


@dataclass(frozen=True, kw_only=True)
class LinUCB(KernelAgent):
    """Takes the arm with the largest x·θ̂_a + α √(xᵀ A_a⁻¹ x), with one ridge regression per arm.

    Li et al. 2010, arXiv:1003.0146, algorithm 1.
    """

    name: ClassVar[str] = "lin-ucb"
    title: ClassVar[str] = "LinUCB"
    needs_contexts: ClassVar[bool] = True
    alpha: float = setting(1.0, low=0)
    """Degree of exploration, at least 0. Raise it to explore more."""
    ridge: float = setting(1.0, low=0, excludes_low=True)
    """Factor of the identity matrix that A_a starts from, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import linear

        return KernelPlan(
            parts=(linear.start_linear, linear.choose_lin_ucb, linear.update_linear),
            parameters=(float(self.alpha), float(self.ridge)),
            state_bytes=linear.state_bytes(environment.num_arms, environment.dimension),
        )
