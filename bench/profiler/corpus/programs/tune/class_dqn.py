# type: ignore
"""A DQN agent in classes: buffer, agent, trainer."""

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --steps 4500
#: imports

torch.set_num_threads(1)

#: globals


class ReplayBuffer:
    def __init__(self, capacity, obs_dim, rng):
        self.obs = np.zeros((capacity, obs_dim), np.float32)
        self.next_obs = np.zeros((capacity, obs_dim), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.capacity, self.added, self.rng = capacity, 0, rng

    def add(self, obs, action, reward, next_obs, done):
        at = self.added % self.capacity
        self.obs[at], self.next_obs[at] = obs, next_obs
        self.actions[at], self.rewards[at], self.dones[at] = action, reward, done
        self.added += 1
        #: step obs=obs reward=reward count=self.added steady=yes

    def sample(self, num):
        picks = self.rng.integers(0, min(self.added, self.capacity), num)
        #: sample count=self.added steady=yes
        return (
            torch.from_numpy(self.obs[picks]),
            torch.from_numpy(self.actions[picks]),
            torch.from_numpy(self.rewards[picks]),
            torch.from_numpy(self.next_obs[picks]),
            torch.from_numpy(self.dones[picks]),
        )


class Agent:
    def __init__(self, obs_dim, num_actions, rng):
        self.q = nn.Sequential(
            nn.Linear(obs_dim, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, num_actions),
        )
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3, fused=True)
        self.num_actions, self.rng, self.updates = num_actions, rng, 0

    @torch.no_grad()
    def act(self, obs, epsilon):
        if self.rng.random() < epsilon:
            return int(self.rng.integers(self.num_actions))
        return int(self.q(torch.from_numpy(obs)).argmax())

    def learn(self, batch):
        obs, actions, rewards, next_obs, dones = batch
        with torch.no_grad():
            best = self.target(next_obs).amax(1)
            goal = rewards + 0.99 * (1 - dones) * best
        predicted = self.q(obs).gather(1, actions[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(predicted, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        #: update count=self.updates net=self.q steady=yes
        if self.updates % 200 == 0:
            self.target.load_state_dict(self.q.state_dict())


class Trainer:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.env = gym.make("Acrobot-v1")
        #: wrap env=self.env copies=1
        self.agent = Agent(6, 3, self.rng)
        self.buffer = ReplayBuffer(20000, 6, self.rng)
        self.seed = seed
        self.returns = []

    def train(self, steps):
        obs, _ = self.env.reset(seed=self.seed)
        total = 0.0
        #: setup net=self.agent.q
        for step in range(steps):
            action = self.agent.act(obs, max(0.05, 1 - 2 * step / steps))
            next_obs, reward, terminated, truncated, _ = self.env.step(action)
            self.buffer.add(obs, action, reward, next_obs, terminated)
            obs, total = next_obs, total + reward
            #: step obs=obs reward=reward count=step net=self.agent.q steady=yes
            if terminated or truncated:
                self.returns.append(total)
                #: episode reward=total count=len(self.returns) net=self.agent.q steady=yes
                obs, total = self.env.reset()[0], 0.0
            if step >= 300:
                self.agent.learn(self.buffer.sample(64))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trainer = Trainer(args.seed)
    t0 = time.perf_counter()
    trainer.train(args.steps)
    print(f"{len(trainer.returns)} episodes")
    print(f"loop {time.perf_counter() - t0:.3f} s")
