"""Environments that hang or return large observations. Actors import this module by name."""

import re

import gymnasium
import numpy as np


class Hangs(gymnasium.Wrapper):
    """CartPole that hangs at a step, in C code that holds the GIL."""

    def __init__(self, at=40):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.at, self.count = at, 0

    def step(self, action):
        self.count += 1
        if self.count == self.at:
            re.match("(a+)+b", "a" * 60)
        return self.env.step(action)


class Wide(gymnasium.Env):
    """Large observations, and episodes of one step."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=200_000):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), float(action), True, False, {}
