"""Thompson sampling with Beta posteriors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells


@dataclass(frozen=True, kw_only=True)
class BetaThompson(KernelAgent):
    """Thompson sampling for rewards of 0 or 1, with posteriors Beta(α + ones, β + zeros).

    A reward r between 0 and 1 counts as r ones and 1 − r zeros.
    """

    name: ClassVar[str] = "beta-thompson"
    title: ClassVar[str] = "Thompson (Beta)"
    needs_unit_rewards: ClassVar[bool] = True
    prior_alpha: float = setting(1.0, low=0, excludes_low=True)
    """α of the prior, above 0."""
    prior_beta: float = setting(1.0, low=0, excludes_low=True)
    """β of the prior, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import thompson as kernels

        return KernelPlan(
            parts=(kernels.start_beta, kernels.choose_beta, kernels.update_beta),
            parameters=(float(self.prior_alpha), float(self.prior_beta)),
            state_bytes=kernels.STATE_BYTES * num_cells(environment.num_arms, has_padding=True),
        )
