"""The gradient bandit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.checked_settings import format_setting, setting
from hotloop.bandits.kernel_plans import KernelPlan, num_cells
from hotloop.bandits.kernels.layout import LANES


@dataclass(frozen=True, kw_only=True)
class Gradient(KernelAgent):
    """Draws arms from softmax(H). H moves in proportion to the reward above its mean so far.

    H_a ← H_a + α (r − r̄)(1[a taken] − π_a). Sutton & Barto 2018, eq. 2.12. r̄ is the mean of the
    earlier rewards (at step 1 the reward itself), or 0 without a baseline.
    """

    name: ClassVar[str] = "gradient"
    step_size: float = setting(0.1, low=0, excludes_low=True)
    """α, above 0. Raise it to learn faster, lower it to explore longer."""
    baseline: bool = setting(True)
    """Whether to subtract r̄."""

    @property
    def label(self) -> str:
        """The label in legends and tables."""
        suffix = "" if self.baseline else ", no baseline"
        return f"gradient, α = {format_setting(self.step_size)}{suffix}"

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import softmax

        return KernelPlan(
            parts=(softmax.start_softmax, softmax.choose_gradient, softmax.update_gradient),
            parameters=(float(self.step_size), int(self.baseline)),
            state_bytes=softmax.STATE_BYTES_ARM * num_cells(environment.num_arms)
            + softmax.STATE_BYTES_LANE * LANES,
            needs_policy_words=True,
        )
