"""Thompson sampling with normal posteriors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import REWARD_UNIT, setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells


@dataclass(frozen=True, kw_only=True)
class GaussianThompson(KernelAgent):
    """Draws each arm's value from its normal posterior and takes the largest.

    Model: rewards N(μ, `noise`²), prior μ ~ N(`prior_mean`, `prior_std`²). Thompson 1933, and
    Russo et al. 2018, "A tutorial on Thompson sampling", arXiv:1707.02038.
    """

    name: ClassVar[str] = "gaussian-thompson"
    title: ClassVar[str] = "Thompson (Gaussian)"
    prior_mean: float = setting(0.0, unit=REWARD_UNIT)
    """Mean of the prior. Raise it to explore more at the start."""
    prior_std: float = setting(1.0, low=1e-6, high=1e6, unit=REWARD_UNIT)
    """Standard deviation of the prior, 1e-6 … 1e6. Raise it to explore more."""
    noise: float = setting(1.0, low=1e-6, high=1e6, unit=REWARD_UNIT)
    """Assumed standard deviation of rewards, 1e-6 … 1e6. Raise it to explore more."""

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import thompson as kernels

        return KernelPlan(
            parts=(kernels.start_gaussian, kernels.choose_gaussian, kernels.update_gaussian),
            parameters=(float(self.prior_mean), self.prior_std**-2.0, self.noise**-2.0),
            state_bytes=kernels.STATE_BYTES * num_cells(environment.num_arms, has_padding=True),
        )
