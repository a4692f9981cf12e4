# type: ignore
"""PPO in classes, for a continuous cart written here and stepped as one array."""

import argparse
import time

import numpy as np
import torch
from torch import nn

#: length --iterations 68
#: imports

torch.set_num_threads(1)

#: globals


class Carts:
    """Many carts at once, each of which is to stay at its own goal."""

    def __init__(self, num, seed):
        self.num, self.rng = num, np.random.default_rng(seed)
        self.state = np.zeros((num, 3), np.float32)
        self.age = np.zeros(num, np.int64)

    def reset(self):
        self.state = self.rng.uniform(-1, 1, (self.num, 3)).astype(np.float32)
        self.age[:] = self.rng.integers(0, 50, self.num)
        return self.state.copy()

    def step(self, action):
        x, v, goal = self.state.T
        v = 0.95 * v + 0.1 * np.clip(action, -1, 1)
        x = x + 0.1 * v
        reward = -np.abs(x - goal)
        self.age += 1
        done = self.age >= 50
        self.state = np.stack([x, v, goal], 1).astype(np.float32)
        if done.any():
            self.state[done] = self.rng.uniform(-1, 1, (int(done.sum()), 3))
            self.age[done] = 0
        #: env reward=float(reward[0]) obs=self.state[0] count=int(self.age[0])
        return self.state.copy(), reward.astype(np.float32), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.value = nn.Linear(64, 1), nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        hidden = self.body(obs)
        return self.mean(hidden).squeeze(-1), self.log_std, self.value(hidden).squeeze(-1)

    @staticmethod
    def log_prob(mean, log_std, action):
        return -0.5 * ((action - mean) / log_std.exp()).pow(2) - log_std


class Rollout:
    def __init__(self, length, num):
        self.obs = torch.zeros(length, num, 3)
        self.actions, self.log_probs, self.values, self.rewards, self.dones = (
            torch.zeros(length, num) for _ in range(5)
        )

    def advantages(self, last_value, gamma=0.99, lam=0.95):
        result, running = torch.zeros_like(self.rewards), torch.zeros_like(last_value)
        following = last_value
        for t in range(len(self.rewards) - 1, -1, -1):
            alive = 1 - self.dones[t]
            running = (
                self.rewards[t]
                + gamma * alive * following
                - self.values[t]
                + gamma * lam * alive * running
            )
            result[t], following = running, self.values[t]
        return result


class Trainer:
    def __init__(self, num_carts, length):
        self.carts = Carts(num_carts, seed=4)
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3, fused=True)
        self.rollout = Rollout(length, num_carts)
        self.obs = torch.from_numpy(self.carts.reset())
        self.updates = 0

    @torch.no_grad()
    def collect(self):
        roll = self.rollout
        for t in range(len(roll.obs)):
            mean, log_std, value = self.policy(self.obs)
            action = mean + log_std.exp() * torch.randn_like(mean)
            roll.obs[t], roll.actions[t], roll.values[t] = self.obs, action, value
            roll.log_probs[t] = self.policy.log_prob(mean, log_std, action)
            obs, reward, done = self.carts.step(action.numpy())
            self.obs = torch.from_numpy(obs)
            roll.rewards[t], roll.dones[t] = torch.from_numpy(reward), torch.from_numpy(done)
            #: step obs=obs[0] reward=float(reward[0]) count=t net=self.policy
        return roll.advantages(self.policy(self.obs)[2])

    def improve(self, advantages):
        roll = self.rollout
        columns = [roll.obs, roll.actions, roll.log_probs, advantages, advantages + roll.values]
        flat = [column.flatten(0, 1) for column in columns]
        for _ in range(4):
            for rows in torch.randperm(len(flat[0])).chunk(4):
                obs, action, old, adv, goal = (column[rows] for column in flat)
                mean, log_std, value = self.policy(obs)
                ratio = (self.policy.log_prob(mean, log_std, action) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-6)
                gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                loss = -gain + 0.5 * (value - goal).pow(2).mean() - 0.001 * log_std.mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.updates += 1
                #: update count=self.updates net=self.policy reward=float(self.updates%7) steady=yes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=68)
    args = parser.parse_args()
    torch.manual_seed(0)
    trainer = Trainer(num_carts=64, length=64)
    means = []
    #: setup net=trainer.policy
    start = time.perf_counter()
    for iteration in range(args.iterations):
        trainer.improve(trainer.collect())
        means.append(float(trainer.rollout.rewards.mean()))
        #: episode reward=means[-1] count=iteration net=trainer.policy steady=yes
    print(f"mean reward from {means[0]:.3f} to {means[-1]:.3f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
