"""An environment that kills its process, as the kernel does when memory runs out."""

import os
import signal

import gymnasium


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
