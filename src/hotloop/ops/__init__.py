"""Pure mathematics: advantages and counter-based noise in NumPy, losses and distributions in torch.

Import `hotloop.ops.losses` and `hotloop.ops.distributions`, which need torch, by their own names.
`from hotloop.ops import gae` only imports NumPy.
"""

from __future__ import annotations

from hotloop.ops.advantages import explained_variance, gae
from hotloop.ops.noise import counter_normal, counter_uniform
from hotloop.ops.vtrace import VTrace, vtrace

__all__ = ["VTrace", "counter_normal", "counter_uniform", "explained_variance", "gae", "vtrace"]
