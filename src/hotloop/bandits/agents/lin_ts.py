"""Linear Thompson sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan


@dataclass(frozen=True, kw_only=True)
class LinTS(KernelAgent):
    """Draws each arm's value from N(x·θ̂_a, v² xᵀ A_a⁻¹ x) and takes the largest.

    Agrawal and Goyal 2013, arXiv:1209.3352, algorithm 1, with one regression per arm.
    """

    name: ClassVar[str] = "lin-ts"
    title: ClassVar[str] = "LinTS"
    needs_contexts: ClassVar[bool] = True
    scale: float = setting(1.0, low=0)
    """v, at least 0. Raise it to explore more."""
    ridge: float = setting(1.0, low=0, excludes_low=True)
    """Factor of the identity matrix that A_a starts from, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import linear

        return KernelPlan(
            parts=(linear.start_linear, linear.choose_lin_ts, linear.update_linear),
            parameters=(float(self.scale), float(self.ridge)),
            state_bytes=linear.state_bytes(environment.num_arms, environment.dimension),
        )
