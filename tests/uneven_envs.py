"""Environments that are slow in some workers; workers import this module by its name."""

import os
import random
import time

import gymnasium
import numpy as np


class FastAndSlow(gymnasium.Env):
    """One step, two actions: the first pays 1 in fast workers, the second 1.5 in slow ones.

    Averaged over environments, the second action is better, 0.75 against 0.5. Averaged over steps,
    of which fast workers make 20 times more, the first is better.
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
    """CartPole whose steps take exponentially distributed times, different in each run.

    Args:
        mean_s: Mean time of a step by worker, in seconds. The last one is for all other workers.
    """

    def __init__(self, mean_s=(0.0,)):
        super().__init__(gymnasium.make("CartPole-v1"))
        worker = int(os.environ["HOTLOOP_WORKER"])
        self.mean_s = mean_s[min(worker, len(mean_s) - 1)]

    def step(self, action):
        if self.mean_s:
            time.sleep(random.expovariate(1.0 / self.mean_s))
        return self.env.step(action)
