"""Continuous actions within their bounds: tanh of the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotloop.policies.heads.bounded import Bounded
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Deterministic(Bounded):
    """Outputs are actions before tanh; it explores by adding Gaussian noise after it."""

    meaning = "deterministic"
    description = "actions before tanh"

    def _explore(self, outputs: Array, noise: Array) -> Array:
        return np.tanh(outputs) + self._exploration.noise_std * noise

    def act(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        from hotloop.ops.activations import tanh

        return tanh(outputs)
