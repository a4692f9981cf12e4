"""Environments with goals."""

import gymnasium
import numpy as np
from gymnasium import spaces

_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Reach(gymnasium.Env):
    """A point in a square that must get near a goal: −1 at each step until it does.

    `compute_reward` takes one pair of goals or a batch of them.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, near=0.1, num_steps=20):
        self.near, self.num_steps = near, num_steps
        self.action_space = _BOX
        self.observation_space = spaces.Dict(
            observation=_BOX, achieved_goal=_BOX, desired_goal=_BOX
        )

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return -(distance > self.near).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.num_done = 0
        return self.observe(), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.2 * action, -1, 1).astype(np.float32)
        self.num_done += 1
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self.observe(), reward, False, self.num_done == self.num_steps, {}

    def observe(self):
        place = self.place.copy()
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal}


class OneByOne(Reach):
    """`Reach` whose `compute_reward` takes no batches."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert achieved_goal.shape == (2,)
        return super().compute_reward(achieved_goal, desired_goal, info)
