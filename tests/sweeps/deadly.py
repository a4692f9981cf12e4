"""An environment that ends its process, as the kernel does where memory ends."""

import os
import signal

import gymnasium


class Deadly(gymnasium.Wrapper):
    """CartPole whose third step is the last of its process."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.count = 0

    def step(self, action):
        self.count += 1
        if self.count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)
