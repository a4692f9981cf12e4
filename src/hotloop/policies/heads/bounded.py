"""Continuous actions within their bounds: what the heads that go through tanh share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.ops.noise import counter_normal, counter_uniform
from hotloop.policies.heads.base import EXPLORING, Exploration, Head
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Bounded(Head):
    """Actions c + h · u, u = tanh(…) of the outputs.

    c and h are the centre and half the width of the bounds. The last number of the noise is 1 in
    steps whose other numbers are u itself, uniform; those steps don't ask the network.
    """

    def __init__(self, spec: ActionSpec, exploration: Exploration | None = None) -> None:
        check_bounded(spec)
        super().__init__(spec, exploration)
        self._num_actions = math.prod(spec.shape)
        low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
        self._centre = ((low + high) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)
        self.action_scale = self._centre, self._half
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return standard normal numbers, uniform ones in [−1, 1] at first, and which it is."""
        size, num_steps = self._num_actions, block["num_steps"]
        noise = np.zeros((num_steps, block["num_envs"], size + 1), np.float32)
        noise[..., :-1] = counter_normal(seed, size=size, **block)
        random_steps = self._exploration.random_steps - block["first_step"]
        num_random = min(max(random_steps, 0), num_steps)
        if num_random:
            uniform = counter_uniform(seed, size=size, stream=EXPLORING, **block)
            noise[:num_random, :, :-1] = 2.0 * uniform[:num_random] - 1.0
            noise[:num_random, :, -1] = 1.0
        return noise

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return zeros: the policy has no randomness of its own."""
        return np.zeros((shape[0], self._num_actions + 1), np.float32)

    def is_needed(self, noise: Array) -> bool:
        """Return False while actions are uniform."""
        return not noise[0, -1]

    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        """See `Head`."""
        numbers = noise[:, :-1]
        self._write(numbers if noise[0, -1] else self._explore(outputs, numbers), out)

    def greedy(self, outputs: Array, out: Array) -> None:
        """See `Head`."""
        self._write(np.tanh(outputs[:, : self._num_actions]), out)

    def mode(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        return outputs[:, : self._num_actions].tanh()

    @abstractmethod
    def _explore(self, outputs: Array, noise: Array) -> Array:
        """Return u, (B, A), from outputs and standard normal numbers, (B, A)."""

    def _write(self, unit: Array, out: Array) -> None:
        """Write actions from u; rounding and noise must not carry them over their bounds."""
        flat = out.reshape(unit.shape)
        np.multiply(unit, self._half, out=flat)
        np.add(flat, self._centre, out=flat)
        np.maximum(flat, self._low, out=flat)
        np.minimum(flat, self._high, out=flat)


def check_bounded(spec: ActionSpec) -> None:
    """Refuse actions that are not continuous and of finite, positive width.

    Raises:
        SpaceError: they are not.
    """
    if spec.kind != "box":
        raise SpaceError(
            f"a continuous (box) action space is needed, got a {spec.kind} one: use "
            + ("dqn or ppo" if spec.kind == "discrete" else "ppo")
        )
    if not np.isfinite([*spec.low, *spec.high]).all():
        raise SpaceError(
            "actions are squashed to their bounds, which must be finite, got "
            f"{list(spec.low)} to {list(spec.high)}: wrap the environment in Gymnasium's "
            "RescaleAction or give its space bounds, or use ppo"
        )
    if not all(low < high for low, high in zip(spec.low, spec.high, strict=True)):
        raise SpaceError(
            "actions are squashed to their bounds, of which the upper must be greater, got "
            f"{list(spec.low)} to {list(spec.high)}: leave out what has but one value, or use "
            "ppo"
        )
