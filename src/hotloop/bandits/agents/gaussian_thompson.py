"""Thompson sampling with normal posteriors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import IN_REWARDS, setting
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class GaussianThompson(KernelAgent):
    """Draws each arm's value from its posterior and takes the largest.

    Rewards N(μ, `noise`²), prior μ ~ N(`prior_mean`, `prior_std`²). Thompson 1933; Russo et al.
    2018, "A tutorial on Thompson sampling", arXiv:1707.02038.
    """

    name: ClassVar[str] = "gaussian-thompson"
    title: ClassVar[str] = "Thompson (Gaussian)"
    prior_mean: float = setting(0.0, unit=IN_REWARDS)
    """Mean of the prior."""
    prior_std: float = setting(1.0, low=1e-6, high=1e6, unit=IN_REWARDS)
    """Standard deviation of the prior, 1e-6 … 1e6."""
    noise: float = setting(1.0, low=1e-6, high=1e6, unit=IN_REWARDS)
    """Standard deviation of a reward, 1e-6 … 1e6."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import posteriors as kernels

        return Plan(
            parts=(kernels.start_gaussian, kernels.choose_gaussian, kernels.update_gaussian),
            parameters=(float(self.prior_mean), self.prior_std**-2.0, self.noise**-2.0),
            state_bytes=kernels.STATE_BYTES * num_cells(environment.num_arms, fours=True),
        )
