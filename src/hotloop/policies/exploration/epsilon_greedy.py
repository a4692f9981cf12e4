"""ε-greedy exploration of discrete actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.errors import ConfigError
from hotloop.ops.noise import counter_uniform
from hotloop.policies.exploration.base import EXPLORATION_STREAM, Exploration
from hotloop.policies.heads import Head
from hotloop.policies.heads.base import MASKED, Params
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(Exploration):
    """The action with the greatest value or, with probability ε, a uniform one.

    The first number of the noise is the index of an exploratory action, or −1. The second one is 1
    in steps with ε = 1. Such steps do not need the network, and neither does a single environment
    that explores. With masks, the first number is the fraction of allowed actions below the
    exploratory one, in [0, 1). The network is then always needed, since its outputs hold the mask.

    Attributes:
        start: ε at the first step.
        end: ε from step `num_steps` on, linear in between.
        num_steps: number of steps of each environment over which ε changes.
    """

    start: float
    end: float
    num_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("start", 0.0 <= self.start <= 1.0, "a probability from 0 to 1")
        self.require("end", 0.0 <= self.end <= 1.0, "a probability from 0 to 1")
        self.require("num_steps", self.num_steps >= 1, "at least 1")

    def check(self, head: Head) -> None:
        if head.spec.kind != "discrete":
            raise ConfigError(
                f"EpsilonGreedy needs a number of discrete actions, got a {head.spec.kind} space: "
                "use GaussianNoise for continuous actions"
            )

    def draw_noise(self, head: Head, seed: int, **block: int) -> Array:
        """Return exploratory actions or −1, and whether ε is 1: float32, (T, N, 2)."""
        uniform = counter_uniform(seed, size=2, stream=EXPLORATION_STREAM, **block)
        steps = np.arange(block["first_step"], block["first_step"] + block["num_steps"])
        share = np.minimum(steps / self.num_steps, 1.0)
        epsilon = self.start + (self.end - self.start) * share
        epsilon[steps < self.random_steps] = 1.0
        spec, action = head.spec, uniform[..., 1:]
        if not spec.is_masked:
            action = np.floor(action * spec.num_actions)
        explores = uniform[..., :1] < epsilon[:, None, None]
        noise = np.empty(uniform.shape, np.float32)
        noise[..., :1] = np.where(explores, action, -1.0)
        noise[..., 1] = (epsilon >= 1.0)[:, None]
        return noise

    def is_needed(self, head: Head, noise: Array) -> bool:
        """Return False if every environment explores."""
        if head.spec.is_masked:
            return True
        return not noise[0, 1] and (len(noise) > 1 or noise[0, 0] < 0)

    def choose(self, head: Head, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        explored = noise[:, 0]
        if head.spec.is_masked:
            head.greedy(outputs, out)
            first = outputs[:, :: head.outputs_per_action]
            np.copyto(out, _allowed(first, explored), where=explored >= 0)
        elif noise[0, 1] or (len(noise) == 1 and noise[0, 0] >= 0):
            out[...] = explored
        else:
            head.greedy(outputs, out)
            if len(noise) > 1:
                np.copyto(out, explored, where=explored >= 0, casting="unsafe")


def _allowed(outputs: Array, fraction: Array) -> Array:
    """Return the allowed action above a fraction of the allowed ones: int64, (B,)."""
    is_allowed = outputs > MASKED
    counts = is_allowed.sum(axis=1)
    # In float32, the product may round up to the number of allowed actions.
    index = np.minimum((fraction * counts).astype(np.int64), counts - 1)
    return (is_allowed.cumsum(axis=1) > index[:, None]).argmax(axis=1)
