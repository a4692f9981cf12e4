"""An environment that draws from global generators, which needs torch."""

import random

import gymnasium
import numpy as np
import torch

from tests.toy_envs import ConstantReward


class SamplesSpaces(ConstantReward):
    """An environment that samples from its spaces."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs + self.action_space.sample(), info

    def step(self, action):
        obs, reward, *ends = super().step(action)
        return obs + self.observation_space.sample(), reward, *ends


def make_wrapped():
    """Return an environment that samples from its spaces, beneath other spaces."""
    env = gymnasium.wrappers.TransformReward(SamplesSpaces(), float)
    env.action_space = gymnasium.spaces.Discrete(2)
    return gymnasium.wrappers.FlattenObservation(env)


class DrawsGlobally(ConstantReward):
    """An environment that draws from global generators, also when it is made."""

    def __init__(self) -> None:
        super().__init__(length=7)
        self.offset = self.draw()

    def draw(self) -> float:
        return random.random() + np.random.rand() + torch.rand(1).item()  # noqa: NPY002

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.start = np.float32(self.draw())
        return obs + self.start, info

    def step(self, action):
        obs, reward, *ends = super().step(action)
        return obs + self.start, reward * self.offset * self.draw(), *ends
