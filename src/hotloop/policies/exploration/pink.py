"""Pink noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hotloop.policies.exploration.episode_noise import EpisodeNoise
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class PinkNoise(EpisodeNoise):
    """Gaussian noise with a power density of 1/f: between white noise and a random walk.

    It is correlated over all time scales up to `num_steps`. Eberhard et al. 2023, "Pink Noise Is
    All You Need: Colored Noise Exploration in Deep Reinforcement Learning" (ICLR), recommend it for
    continuous actions. White noise is filtered in the frequency domain, similar to Timmer & König
    1995, "On generating power law noise".

    Attributes:
        num_steps: number of steps of a sequence. Longer episodes get several independent sequences.
    """

    num_steps: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_steps", self.num_steps >= 2, "at least 2")

    @property
    def chunk_steps(self) -> int:
        return self.num_steps

    def correlate(self, white: Array, state: None) -> tuple[Array, None]:
        spectrum = np.fft.rfft(white.astype(np.float64), axis=0)
        spectrum *= _gains(self.num_steps)[:, None]
        return np.fft.irfft(spectrum, self.num_steps, axis=0), None


@lru_cache(maxsize=8)
def _gains(num_steps: int) -> Array:
    """Return the factors of the frequencies 0 … 1/2 for a variance of 1, (num_steps // 2 + 1,)."""
    gains = np.maximum(np.arange(num_steps // 2 + 1), 1.0) ** -0.5
    # All frequencies but 0 and 1/2 count twice: as positive and as negative ones.
    counts = np.full(len(gains), 2.0)
    counts[0] = 1.0
    if num_steps % 2 == 0:
        counts[-1] = 1.0
    return gains / np.sqrt((counts * gains * gains).sum() / num_steps)
