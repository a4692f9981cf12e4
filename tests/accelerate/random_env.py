"""An environment with any spaces, whose observations and rewards are random."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTORS = spaces.Box(-1.0, 1.0, (3,), np.float32)
CONTINUOUS = spaces.Box(-0.5, 0.5, (2,), np.float32)


class RandomEnv(gym.Env[Any, Any]):
    """Random observations and rewards in episodes of `length` steps, which end by truncation.

    Args:
        observation_space, action_space: any spaces.
        length: number of steps of an episode.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any] = VECTORS,
        action_space: spaces.Space[Any] = CONTINUOUS,
        length: int = 7,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._length = length
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._num_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        reward = float(np.sum(action)) + float(self.np_random.normal())
        is_truncated = self._num_steps >= self._length
        is_terminated = not is_truncated and bool(self.np_random.random() < 0.05)
        info = {"TimeLimit.truncated": is_truncated}
        return self.observation_space.sample(), reward, is_terminated, is_truncated, info

    def action_masks(self) -> Any:
        """Return random masks of the discrete actions. The first of each group is allowed."""
        sizes = getattr(self.action_space, "nvec", [getattr(self.action_space, "n", 0)])
        masks = [self.np_random.random(int(size)) < 0.6 for size in sizes]
        for mask in masks:
            mask[0] = True
        return np.concatenate(masks)
