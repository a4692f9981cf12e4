"""An environment that reports extra numbers about its steps and episodes in `info`."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class ReportsInfo(gymnasium.Env):
    """Reports numbers in `info` at each step, and of the episode at its end.

    Args:
        length: Steps of an episode.
        by_limit: Leave the end to a time limit. `info` of the last step is then as of any other.
        info: Further items of `info` at each step.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, by_limit=False, info=None):
        self._length, self._by_limit, self._info = length, by_limit, info or {}
        self._t = self._episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._episode = 0, self._episode + 1
        return self._obs(), {"is_success": False, "x": -1.0}

    def step(self, action):
        self._t += 1
        is_over = not self._by_limit and self._t == self._length
        info = {
            "is_success": np.bool_(self._episode % 2 == 0),
            "x": np.float32(self._t / 2),
            **self._info,
        }
        if is_over:
            info["episode"] = {
                "r": float(self._t),
                "l": self._t,
                "t": 0.5,
                "angle": np.array(0.25),
                "hits": self._episode,
                "path": np.zeros(3),
            }
        return self._obs(), 1.0, is_over, False, info

    def _obs(self):
        return np.array([self._t], np.float32)


def make(**kwargs):
    """Make an environment, for workers."""
    return ReportsInfo(**kwargs)
