"""The gradient bandit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting, short
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.plan import Plan, num_cells


@dataclass(frozen=True, kw_only=True)
class Gradient(KernelAgent):
    """Draws from softmax(H), and H moves with the reward above its mean so far.

    H_a ← H_a + α (r − r̄)(1[a taken] − π_a). Sutton & Barto 2018, eq. 2.12; r̄ is the mean of the
    earlier rewards (at step 1 the reward itself), or 0 without a baseline.
    """

    name: ClassVar[str] = "gradient"
    step_size: float = setting(0.1, low=0, above=True)
    """α, above 0."""
    baseline: bool = setting(True)
    """Whether r̄ is subtracted."""

    @property
    def label(self) -> str:
        """A short text for a legend."""
        without = "" if self.baseline else ", no baseline"
        return f"gradient, α = {short(self.step_size)}{without}"

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import softmax

        return Plan(
            parts=(softmax.start_softmax, softmax.choose_gradient, softmax.update_gradient),
            parameters=(float(self.step_size), int(self.baseline)),
            state_bytes=softmax.STATE_BYTES_ARM * num_cells(environment.num_arms)
            + softmax.STATE_BYTES_LANE * LANES,
            needs_policy=True,
        )
