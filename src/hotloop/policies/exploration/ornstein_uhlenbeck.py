"""Noise of an Ornstein-Uhlenbeck process."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hotloop.policies.exploration.episode_noise import EpisodeNoise
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class OrnsteinUhlenbeckNoise(EpisodeNoise):
    """x_t = (1 − θ) x_(t−1) + σ ε_t, from x = 0 before an episode. ε is standard normal.

    It is the process of Uhlenbeck & Ornstein 1930, "On the Theory of the Brownian Motion", in steps
    of one, as in Lillicrap et al. 2015, arXiv:1509.02971, who use θ = 0.15 and σ = 0.2. `std` is
    the standard deviation late in an episode, σ / √(1 − (1 − θ)²), 0.38 for these values.

    Attributes:
        theta: θ in (0, 1]. The correlation of two steps is (1 − θ) to the power of their distance.
    """

    theta: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("theta", 0.0 < self.theta <= 1.0, "a number above 0 and at most 1")

    @property
    def chunk_steps(self) -> int:
        return 128

    def correlate(self, white: Array, state: Array | None) -> tuple[Array, Array]:
        decay = 1.0 - self.theta
        noise = math.sqrt(1.0 - decay * decay) * white.astype(np.float64)
        if state is not None:
            noise[0] += decay * state
        for t in range(1, len(noise)):
            noise[t] += decay * noise[t - 1]
        return noise, noise[-1]
