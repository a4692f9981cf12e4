"""A replay buffer of NumPy arrays, as scripts without hotloop have one."""

from collections import namedtuple

import numpy as np
import torch

Transitions = namedtuple("Transitions", "obs action reward next_obs terminated")


class ReplayBuffer:
    def __init__(self, env, size, seed):
        obs, action = env.observation_space, env.action_space
        self.arrays = Transitions(
            np.zeros((size, *obs.shape), np.float32),
            np.zeros((size, *action.shape), action.dtype),
            np.zeros(size, np.float32),
            np.zeros((size, *obs.shape), np.float32),
            np.zeros(size, bool),
        )
        self.size, self.num_added = size, 0
        self.rng = np.random.default_rng(seed)

    def add(self, *transition):
        for array, value in zip(self.arrays, transition, strict=True):
            array[self.num_added % self.size] = value
        self.num_added += 1

    def sample(self, batch_size):
        rows = self.rng.integers(min(self.num_added, self.size), size=batch_size)
        return Transitions(*(torch.from_numpy(array[rows]) for array in self.arrays))
