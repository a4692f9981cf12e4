"""Environments that tell numbers of their own about their episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Tells(gymnasium.Env):
    """Each episode has `length` steps; `info` tells of each step, and of the episode at its end.

    Args:
        length: steps until it terminates.
        by_limit: leave the end to a time limit, at whose step `info` is as of any other.
        info: what `info` has besides, at each step.
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
                "r": 1.0,
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
    """Make one, for workers."""
    return Tells(**kwargs)
