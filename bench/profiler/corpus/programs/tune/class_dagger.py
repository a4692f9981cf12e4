# type: ignore
"""Imitation of a scripted expert on MountainCarContinuous, aggregating what it visits."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --rounds 20
#: imports

torch.set_num_threads(1)

#: globals


class Expert:
    """Pushes where the car already goes."""

    def act(self, obs):
        return 1.0 if obs[1] >= 0 else -1.0


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh()
        )

    def forward(self, obs):
        return self.net(obs).squeeze(-1)

    @torch.no_grad()
    def act(self, obs):
        return float(self(torch.from_numpy(obs)))


class Dataset:
    def __init__(self, capacity):
        self.obs = np.zeros((capacity, 2), np.float32)
        self.labels = np.zeros(capacity, np.float32)
        self.size = 0

    def add(self, obs, label):
        at = self.size % len(self.obs)
        self.obs[at], self.labels[at] = obs, label
        self.size += 1

    def batch(self, num):
        rows = torch.randint(0, min(self.size, len(self.obs)), (num,)).numpy()
        #: sample count=self.size
        return torch.from_numpy(self.obs[rows]), torch.from_numpy(self.labels[rows])


class Dagger:
    def __init__(self):
        self.env = gym.make("MountainCarContinuous-v0")
        #: wrap env=self.env copies=1
        self.expert, self.student, self.data = Expert(), Student(), Dataset(50_000)
        self.optimizer = torch.optim.Adam(self.student.parameters(), 1e-3, fused=True)
        self.steps = 0

    def visit(self, mixing, length=1000):
        obs, _ = self.env.reset(seed=self.steps)
        total = 0.0
        for step in range(length):
            label = self.expert.act(obs)
            self.data.add(obs, label)
            action = label if step % 10 < 10 * mixing else self.student.act(obs)
            obs, reward, terminated, truncated, _ = self.env.step(np.array([action], np.float32))
            total += float(reward)
            self.steps += 1
            #: step obs=obs reward=float(reward) count=self.steps net=self.student steady=yes
            if terminated or truncated:
                obs, _ = self.env.reset()
        return total

    def fit(self, updates=150):
        for update in range(updates):
            obs, labels = self.data.batch(256)
            loss = (self.student(obs) - labels).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            #: update count=update net=self.student
        return float(loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(1)
    learner = Dagger()
    #: setup net=learner.student
    started = time.perf_counter()
    for number in range(args.rounds):
        score = learner.visit(mixing=max(0.0, 0.5 - 0.1 * number))
        error = learner.fit()
        #: episode reward=score count=number net=learner.student steady=yes
        if number % 5 == 0:
            print(f"round {number}: return {score:.1f}, error {error:.3f}")
    print(f"loop {time.perf_counter() - started:.3f} s")
