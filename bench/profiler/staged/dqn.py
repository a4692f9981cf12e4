"""DQN in one piece: dqn.py ENV_ID STEPS TIMES_FILE."""

import random
import sys

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

from bench.profiler.staged.timers import begin, lap


class QNetwork(nn.Module):
    def __init__(self, env):
        super().__init__()
        size = int(np.prod(env.single_observation_space.shape))
        self.network = nn.Sequential(
            nn.Linear(size, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, int(env.single_action_space.n)),
        )

    def forward(self, obs):
        return self.network(obs)


class ReplayBuffer:
    def __init__(self, capacity, shape):
        self.obs = np.zeros((capacity, *shape), np.float32)
        self.next_obs = np.zeros((capacity, *shape), np.float32)
        self.actions = np.zeros((capacity, 1), np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.capacity, self.size, self.position = capacity, 0, 0

    def add(self, obs, next_obs, action, reward, done):
        at = self.position
        self.obs[at], self.next_obs[at] = obs[0], next_obs[0]
        self.actions[at], self.rewards[at], self.dones[at] = action[0], reward[0], done[0]
        self.position = (at + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, count):
        rows = np.random.randint(0, self.size, count)
        return tuple(
            torch.from_numpy(field[rows])
            for field in (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        )


if __name__ == "__main__":
    env_id, num_steps = sys.argv[1], int(sys.argv[2])
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)])
    q_network, target_network = QNetwork(envs), QNetwork(envs)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=2.5e-4)
    buffer = ReplayBuffer(10_000, envs.single_observation_space.shape)
    begin()
    obs, _ = envs.reset(seed=1)
    lap("env")

    for step in range(num_steps):
        epsilon = max(0.05, 1.0 - step / (0.2 * num_steps))
        if random.random() < epsilon:
            actions = np.array([envs.single_action_space.sample()])
        else:
            q_values = q_network(torch.Tensor(obs))
            actions = torch.argmax(q_values, dim=1).numpy()
        lap("act")
        next_obs, rewards, terminated, truncated, _ = envs.step(actions)
        lap("env")
        buffer.add(obs, next_obs, actions, rewards, terminated)
        lap("replay")
        obs = next_obs

        if step > 1_000:
            if step % 2 == 0:
                lap("other")
                data_obs, data_next, data_actions, data_rewards, data_dones = buffer.sample(128)
                lap("replay")
                with torch.no_grad():
                    best, _ = target_network(data_next).max(dim=1)
                    wanted = data_rewards + 0.99 * best * (1 - data_dones)
                old = q_network(data_obs).gather(1, data_actions).squeeze()
                loss = F.mse_loss(wanted, old)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                lap("update")
            if step % 500 == 0:
                for target, own in zip(
                    target_network.parameters(), q_network.parameters(), strict=True
                ):
                    target.data.copy_(own.data)
                lap("update")
    envs.close()
