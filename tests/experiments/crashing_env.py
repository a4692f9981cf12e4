"""Environments that kill their process, as the kernel does when memory runs out."""

import os
import signal

import gymnasium

from hotloop.envs.seeding import episode_seed


class CrashingEnv(gymnasium.Wrapper):
    """CartPole whose third step kills its process."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.count = 0

    def step(self, action):
        self.count += 1
        if self.count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


class CrashesWithSeed(gymnasium.Wrapper):
    """CartPole that kills its process in a run with the seed 2."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, *, seed=None, options=None):
        if seed == episode_seed(2, 0, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.reset(seed=seed, options=options)
