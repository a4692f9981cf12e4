"""Thompson sampling with Beta posteriors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class BetaThompson(KernelAgent):
    """As Gaussian Thompson sampling, for rewards of 0 or 1: posteriors Beta(α + ones, β + zeros).

    A reward between them counts as that share of a one, and the rest as a zero.
    """

    name: ClassVar[str] = "beta-thompson"
    title: ClassVar[str] = "Thompson (Beta)"
    needs_unit: ClassVar[bool] = True
    prior_alpha: float = setting(1.0, low=0, above=True)
    """α of the prior, above 0."""
    prior_beta: float = setting(1.0, low=0, above=True)
    """β of the prior, above 0."""

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import posteriors as kernels

        return Plan(
            parts=(kernels.start_beta, kernels.choose_beta, kernels.update_beta),
            parameters=(float(self.prior_alpha), float(self.prior_beta)),
            state_bytes=kernels.STATE_BYTES * num_cells(environment.num_arms, fours=True),
        )
