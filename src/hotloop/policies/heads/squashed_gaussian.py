"""Continuous actions within their bounds: draws from a Gaussian that go through tanh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.policies.heads.base import Exploration
from hotloop.policies.heads.bounded import Bounded
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # as CleanRL bounds it


class SquashedGaussian(Bounded):
    """Outputs are A means and as many raw log standard deviations, both before tanh."""

    meaning = "squashed_gaussian"
    description = "means before tanh, and as many numbers that say the spread"

    def __init__(self, spec: ActionSpec, exploration: Exploration | None = None) -> None:
        super().__init__(spec, exploration)
        self.size = 2 * self._num_actions

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        noise = super().draw_from(rng, shape)
        noise[:, :-1] = rng.standard_normal((shape[0], self._num_actions), np.float32)
        return noise

    def _explore(self, outputs: Array, noise: Array) -> Array:
        mean, raw = outputs[:, : self._num_actions], outputs[:, self._num_actions :]
        return np.tanh(mean + np.exp(log_std_of(raw)) * noise)

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See `Head`; the density is that of u, whatever the bounds of the actions are."""
        from hotloop.ops.activations import tanh
        from hotloop.ops.distributions import squashed_gaussian

        mean, raw = outputs.chunk(2, dim=-1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (tanh(raw) + 1.0)
        return squashed_gaussian(mean, log_std, noise)


def log_std_of(raw: Array) -> Array:
    """Return the log standard deviation, in [−5, 2], from what the network says."""
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(raw) + 1.0)
