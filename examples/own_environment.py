"""Train on an environment of your own: a walk along a line, to the end with the prize.

python examples/own_environment.py
cd examples && hotloop train ppo --env-id own_environment:Walk --workers 2
"""

import sys

import gymnasium
import numpy as np

from hotloop.algorithms import ppo


class Walk(gymnasium.Env):
    """Start in the middle of a line. Each step costs 0.1, the right end gives 1."""

    def __init__(self, length=11):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def _obs(self):
        return np.array([2 * self.place / (self.length - 1) - 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.length // 2, 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        self.place += 1 if action == 1 else -1
        terminated = self.place in (0, self.length - 1)
        reward = 1.0 if self.place == self.length - 1 else -0.1
        return self._obs(), reward, terminated, self.steps == 100, {}


def main(total_timesteps=50_000):
    config = ppo.Config(
        env_kwargs={"length": 15},  # arguments of the constructor
        total_timesteps=total_timesteps,
    )
    result = ppo.train(config, env=Walk)
    print(f"mean return: {result.mean_return:.2f}")  # at best 0.4: seven steps


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
