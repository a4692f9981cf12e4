"""Pure maths: returns and advantages, counter-based noise (NumPy); losses, distributions (torch).

`hotloop.ops.losses` and `hotloop.ops.distributions` need torch and are imported by their own names,
so that `from hotloop.ops import gae` costs NumPy alone.
"""

from __future__ import annotations

from hotloop.ops.advantages import explained_variance, gae
from hotloop.ops.noise import counter_normal, counter_uniform
from hotloop.ops.vtrace import VTrace, vtrace

__all__ = ["VTrace", "counter_normal", "counter_uniform", "explained_variance", "gae", "vtrace"]
