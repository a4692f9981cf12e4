"""Train with action masks: the environment returns which actions are allowed next.

python examples/masks.py
cd examples && hotloop train dqn --env-id masks:Boxes --action-masks
"""

import sys

import gymnasium
import numpy as np

from hotloop.algorithms import ppo


class Boxes(gymnasium.Env):
    """Open six boxes, each once. The reward is the box's number, and counts less later."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(6)

    def action_masks(self):  # as in sb3-contrib; `info["action_mask"]` works as well
        return ~self.is_open

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_open = np.zeros(6, bool)
        return self.is_open.astype(np.float32), {}

    def step(self, action):
        reward = float(action) * 0.5 ** self.is_open.sum()
        self.is_open[action] = True
        return self.is_open.astype(np.float32), reward, bool(self.is_open.all()), False, {}


def main(total_timesteps=50_000):
    config = ppo.Config(action_masks=True, total_timesteps=total_timesteps)
    result = ppo.train(config, env=Boxes)
    print(f"mean return: {result.mean_return:.2f}")  # at best 8.06: 5, 4, 3, …
    is_open = np.array([0, 0, 0, 0, 0, 1], np.float32)
    print(f"next box: {result.policy.act(is_open, action_mask=is_open == 0)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
