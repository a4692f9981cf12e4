"""A head for discrete actions: the greatest value or, with probability ε, a uniform action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.ops.noise import counter_uniform
from hotloop.policies.heads.base import EXPLORATION_STREAM, MASKED, Head
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Greedy(Head):
    """Outputs are Q of each of A discrete actions.

    The first number of the noise is the index of an exploratory action, or −1. The second one is 1
    in steps with ε = 1. Such steps do not need the network, nor do those of a single environment
    that explores. With masks, the first number is the fraction of allowed actions below the
    exploratory one, in [0, 1). The network is then always needed, since its outputs hold the mask.
    """

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
        """Return exploratory actions or −1, and whether ε is 1: float32, (T, N, 2)."""
        uniform = counter_uniform(seed, size=2, stream=EXPLORATION_STREAM, **block)
        first_step, num_steps = block["first_step"], block["num_steps"]
        exploration = self._exploration
        start, end = exploration.epsilon
        steps = np.arange(first_step, first_step + num_steps)
        epsilon = start + (end - start) * np.minimum(steps / exploration.epsilon_steps, 1.0)
        epsilon[steps < exploration.random_steps] = 1.0
        action = uniform[..., 1:] if self.is_masked else np.floor(uniform[..., 1:] * self.size)
        explores = uniform[..., :1] < epsilon[:, None, None]
        noise = np.empty(uniform.shape, np.float32)
        noise[..., :1] = np.where(explores, action, -1.0)
        noise[..., 1] = (epsilon >= 1.0)[:, None]
        return noise

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return noise without exploration: the policy is deterministic."""
        return np.tile(np.array((-1.0, 0.0), np.float32), (shape[0], 1))

    def is_needed(self, noise: Array) -> bool:
        """Return False if every environment explores."""
        if self.is_masked:
            return True
        return not noise[0, 1] and (len(noise) > 1 or noise[0, 0] < 0)

    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        if not self.is_needed(noise):
            out[...] = noise[:, 0]
            return
        outputs.argmax(axis=1, out=out)
        if self.is_masked:
            explores = noise[:, 0] >= 0
            np.copyto(out, _allowed(outputs, noise[:, 0]), where=explores)
        elif len(noise) > 1:
            explores = noise[:, 0] >= 0
            np.copyto(out, noise[:, 0], where=explores, casting="unsafe")

    def values(self, outputs: Tensor) -> Tensor:
        return outputs


def _allowed(outputs: Array, fraction: Array) -> Array:
    """Return the allowed action above a fraction of the allowed ones: int64, (B,)."""
    is_allowed = outputs > MASKED
    counts = is_allowed.sum(axis=1)
    # In float32, the product may round up to the number of allowed actions.
    index = np.minimum((fraction * counts).astype(np.int64), counts - 1)
    return (is_allowed.cumsum(axis=1) > index[:, None]).argmax(axis=1)
