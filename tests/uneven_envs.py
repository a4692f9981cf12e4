"""Environments that are slow in some workers; workers import this module by its name."""

import os
import random
import time

import gymnasium
import numpy as np


class FastAndSlow(gymnasium.Env):
    """One step, two actions: the first pays 1 where it is fast, the second 1.5 where it is slow.

    Over all environments alike the second is the better one, 0.75 against 0.5; over all steps, of
    which the fast ones make 20 times as many, the first.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s=0.0003, times_slower=20):
        self.is_slow = int(os.environ["HOTLOOP_WORKER"]) % 2 == 1
        self.step_s = step_s * (times_slower if self.is_slow else 1)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(self.step_s)
        reward = (1.5 if action == 1 else 0.0) if self.is_slow else (1.0 if action == 0 else 0.0)
        return np.zeros(1, np.float32), reward, True, False, {}


class Dawdling(gymnasium.Wrapper):
    """CartPole whose steps take random times, of a law of their own in each worker: never twice the
    same, whatever the seed.

    Args:
        mean_s: of a step, by worker, the last one of all others; exponential.
    """

    def __init__(self, mean_s=(0.0,)):
        super().__init__(gymnasium.make("CartPole-v1"))
        worker = int(os.environ["HOTLOOP_WORKER"])
        self.mean_s = mean_s[min(worker, len(mean_s) - 1)]

    def step(self, action):
        if self.mean_s:
            time.sleep(random.expovariate(1.0 / self.mean_s))
        return self.env.step(action)
