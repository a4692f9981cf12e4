"""MOSS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.kernel_plans import KernelPlan, make_table, num_cells


@dataclass(frozen=True, kw_only=True)
class MOSS(KernelAgent):
    """Takes the arm with the largest mean + √(max(ln(T / (k N)), 0) / N), for T steps in total.

    Audibert and Bubeck 2009, "Minimax policies for adversarial and stochastic bandits", section 2.
    """

    name: ClassVar[str] = "moss"
    title: ClassVar[str] = "MOSS"

    def _plan(self, environment: Any, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import q_values

        k = environment.num_arms
        indices = make_table(
            num_steps + 1,
            lambda pulls: np.sqrt(np.maximum(np.log(num_steps / (k * pulls)), 0.0) / pulls),
        )
        return KernelPlan(
            parts=(q_values.start_moss, q_values.choose_moss, q_values.update_moss),
            parameters=(0.0, 0.0, 0.0, 0, indices.ctypes.data),
            arrays=(indices,),
            state_bytes=q_values.STATE_BYTES * num_cells(k),
        )
