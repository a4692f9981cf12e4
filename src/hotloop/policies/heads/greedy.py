"""A head for discrete actions: the one with the greatest value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.policies.heads.base import Head
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Greedy(Head):
    """Outputs are Q of each of A discrete actions. The greatest one is chosen, without noise."""

    meaning = "action_values"
    description = "the value of each action"

    @classmethod
    def check(cls, spec: ActionSpec) -> None:
        if spec.kind != "discrete":
            raise SpaceError(
                f"Q-learning takes the best of a number of discrete actions, got a {spec.kind} "
                f"space of shape {spec.shape}: "
                + ("use sac, td3 or ppo" if spec.kind == "box" else "use ppo")
            )

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return nothing: the policy is deterministic."""
        return np.empty((block["num_steps"], block["num_envs"], 0), np.float32)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return nothing: the policy is deterministic."""
        return np.empty((shape[0], 0), np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        outputs.argmax(axis=1, out=out)

    def values(self, outputs: Tensor) -> Tensor:
        return outputs
