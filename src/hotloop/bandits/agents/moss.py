"""MOSS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.plan import Plan, num_cells, table


@dataclass(frozen=True, kw_only=True)
class MOSS(KernelAgent):
    """The arm with the largest mean + √(max(ln(T / (k N)), 0) / N), T being the number of steps.

    Audibert and Bubeck 2009, "Minimax policies for adversarial and stochastic bandits", section 2.
    """

    name: ClassVar[str] = "moss"
    title: ClassVar[str] = "MOSS"

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import values

        k = environment.num_arms
        indices = table(
            num_steps + 1,
            lambda pulls: np.sqrt(np.maximum(np.log(num_steps / (k * pulls)), 0.0) / pulls),
        )
        return Plan(
            parts=(values.start_moss, values.choose_moss, values.update_moss),
            parameters=(0.0, 0.0, 0.0, 0, indices.ctypes.data),
            arrays=(indices,),
            state_bytes=values.STATE_BYTES * num_cells(k),
        )
