"""The base class of noise that is correlated within an episode."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.ops.noise import counter_normal
from hotloop.policies.exploration.gaussian import GaussianNoise
from hotloop.types import Array

_STREAM = 2  # noise stream of chunks


@dataclass(frozen=True, kw_only=True)
class EpisodeNoise(GaussianNoise, ABC):
    """Noise that is correlated within an episode, and independent of all other episodes.

    It is drawn in chunks of `chunk_steps` steps, counted from the first step of each episode.
    Therefore it is a function of the seed, the environment, the episode's first step and the step.
    """

    @property
    @abstractmethod
    def chunk_steps(self) -> int:
        """Number of steps of a chunk, C."""

    @abstractmethod
    def correlate(self, white: Array, state: Any) -> tuple[Array, Any]:
        """Turn white noise into the noise of the next C steps of an episode.

        Args:
            white: independent standard normal numbers, float32, (C, A).
            state: what the call for the previous chunk returned; None: the episode begins.

        Returns:
            The noise, (C, A), which `std` multiplies, and the state for the next call.
        """

    def draw_chunk(
        self, seed: int, *, env: int, first_step: int, size: int, state: Any
    ) -> tuple[Array, Any]:
        """Return the noise of a chunk, (C, A), and the state after it.

        Args:
            seed: seed of the run.
            env: index of the environment, counted over all workers.
            first_step: first step of the chunk, counted from the start of the run.
            size: A.
            state: the state after the previous chunk of the episode; None: there is none.
        """
        shape = (self.num_chunk_steps(), size)
        # A chunk's numbers belong to its first step, so no other episode shares them.
        white = counter_normal(
            seed,
            first_step=first_step,
            num_steps=1,
            num_envs=1,
            first_env=env,
            size=math.prod(shape),
            stream=_STREAM,
        )
        result = self.correlate(white.reshape(shape), state)
        kind = type(self).__name__
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ConfigError(
                f"`correlate` of {kind} must return the noise and the state for the next call, got "
                f"{type(result).__name__}: end it with `return noise, state`"
            )
        noise, state = np.asarray(result[0]), result[1]
        if noise.shape != shape or noise.dtype.kind not in "fiu" or not np.isfinite(noise).all():
            received = f"{noise.dtype} of shape {noise.shape}"
            if noise.shape == shape:
                received += " with values that are no finite numbers"
            raise ConfigError(
                f"`correlate` of {kind} must return finite numbers of the shape (C, A) = {shape}, "
                f"got {received}: check its computation"
            )
        return self.std * noise, state

    def num_chunk_steps(self) -> int:
        """Return `chunk_steps`, checked, since it comes from the user's class."""
        steps = self.chunk_steps
        if type(steps) is not int or steps < 1:
            raise ConfigError(
                f"`chunk_steps` of {type(self).__name__} must be a positive integer, got {steps!r}"
            )
        return steps
