"""Upper confidence bounds, the book's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.bandits.agents.base import KernelAgent
from hotloop.bandits.described import setting, short
from hotloop.bandits.plan import Plan, num_cells, table


@dataclass(frozen=True, kw_only=True)
class UCB(KernelAgent):
    """The arm with the largest Q + c √(ln t / N); arms not yet tried come first.

    Sutton & Barto 2018, eq. 2.10.
    """

    name: ClassVar[str] = "ucb"
    c: float = setting(2.0, low=0)
    """Degree of exploration, from 0."""
    step_size: float | None = setting(None, low=0, high=1, above=True)
    """α in (0, 1]; None for sample averages."""

    @property
    def label(self) -> str:
        """A short text for a legend."""
        rate = "" if self.step_size is None else f", α = {short(self.step_size)}"
        return f"UCB, c = {short(self.c)}{rate}"

    def _plan(self, environment: Any, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import values

        roots = table(num_steps, lambda pulls: pulls**-0.5 if self.c else 0.0, at_zero=1.0)
        return Plan(
            parts=(values.start_ucb, values.choose_ucb, values.update_ucb),
            parameters=(float(self.step_size or 0.0), 0.0, float(self.c), 0, roots.ctypes.data),
            arrays=(roots,),
            state_bytes=(values.STATE_BYTES + 4) * num_cells(environment.num_arms),
        )
