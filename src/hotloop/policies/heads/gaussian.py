"""A head for continuous actions: means, and one log standard deviation for all states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.ops.noise import counter_normal
from hotloop.policies.heads.base import Head
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

_LOG_STD = "policy.log_std"
_LOG_SQRT_2PI = np.float32(0.5 * math.log(2.0 * math.pi))


class Gaussian(Head):
    """A diagonal Gaussian with the log standard deviation as the parameter `policy.log_std`."""

    meaning = description = "means"
    acts_by_parameters = True  # the standard deviation

    @classmethod
    def check(cls, spec: ActionSpec) -> None:
        if spec.kind != "box":
            raise SpaceError(
                f"a continuous (box) action space is needed, got a {spec.kind} one: leave the "
                "choice of the head to `actor_critic`"
            )

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {**shapes, _LOG_STD: (self.size,)}

    def load(self, params: Mapping[str, Array]) -> None:
        self._log_std = params[_LOG_STD]
        self._std = np.exp(self._log_std)

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return standard normal numbers."""
        return counter_normal(seed, size=self.size, **block)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        return rng.standard_normal(shape, np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        flat = out.reshape(outputs.shape)  # a view: `out` is one step of a fragment
        np.multiply(noise, self._std, out=flat)
        np.add(flat, outputs, out=flat)

    def greedy(self, outputs: Array, out: Array) -> None:
        out.reshape(outputs.shape)[...] = outputs

    def log_prob(self, outputs: Array, noise: Array, action: Array) -> Array:
        """See `Head`. The noise is the standardized action."""
        per_dimension = 0.5 * np.square(noise) + (self._log_std + _LOG_SQRT_2PI)
        return -per_dimension.sum(axis=-1, dtype=np.float32)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs

    def device_noise(self, key: Tensor, first_step: Tensor, **block: int) -> Tensor:
        """Return standard normal numbers: float32, (T, N, A)."""
        from hotloop.ops import tensor_noise

        return tensor_noise.normal(key, first_step, size=self.size, **block)

    def draw(self, params: Mapping[str, Tensor], outputs: Tensor, noise: Tensor) -> Tensor:
        flat = outputs + params[_LOG_STD].exp() * noise
        return flat.view(-1, *self._spec.shape)

    def evaluate(
        self, params: Mapping[str, Tensor], outputs: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        from hotloop.ops import distributions

        return distributions.diagonal_gaussian(outputs, params[_LOG_STD], action.flatten(1))
