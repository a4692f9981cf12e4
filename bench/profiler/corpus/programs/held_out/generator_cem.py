# type: ignore
"""Cross-entropy method with candidates from a generator and a model of the world in torch."""

import argparse
import time

import numpy as np
import torch
from torch import nn

#: length --plans 340
#: imports

torch.set_num_threads(1)

#: globals


class Reacher:
    """Two joints, a target: the true world."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.q = self.rng.uniform(-1, 1, 2)
        self.goal = self.rng.uniform(-1, 1, 2)
        self.t = 0
        #: reset count=self.t
        return np.concatenate([self.q, self.goal]).astype(np.float32)

    def step(self, action):
        self.q = self.q + 0.1 * np.tanh(action) + 0.01 * np.sin(3 * self.q[::-1])
        self.t += 1
        obs = np.concatenate([self.q, self.goal]).astype(np.float32)
        reward = -float(np.abs(self.q - self.goal).sum())
        #: env obs=obs reward=reward count=self.t
        return obs, reward, self.t >= 30


def candidates(iterations, num, horizon, generator):
    """Yields plans; is sent which of them were best."""
    mean, std = torch.zeros(horizon, 2), torch.ones(horizon, 2)
    for _ in range(iterations):
        plans = mean + std * torch.randn(num, horizon, 2, generator=generator)
        best = yield plans
        mean, std = best.mean(0), best.std(0) + 0.05
    yield mean[None]


def imagine(model, obs, plans):
    state = torch.from_numpy(obs).expand(len(plans), -1)
    total = torch.zeros(len(plans))
    for t in range(plans.shape[1]):
        joints = state[:, :2] + model(torch.cat([state, plans[:, t]], 1))
        state = torch.cat([joints, state[:, 2:]], 1)
        total -= (joints - state[:, 2:]).abs().sum(1)
    return total


def plan(model, obs, generator):
    with torch.no_grad():
        search = candidates(3, 128, 10, generator)
        plans = next(search)
        while len(plans) > 1:
            totals = imagine(model, obs, plans)
            #: sample
            plans = search.send(plans[totals.topk(12).indices])
    return plans[0, 0].numpy()


def main(num_plans):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    world = Reacher(0)
    model = nn.Sequential(
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    inputs, outputs = torch.zeros(num_plans, 6), torch.zeros(num_plans, 2)
    obs, rewards, ended = world.reset(), [], 0
    #: setup net=model
    for number in range(num_plans):
        action = plan(model, obs, generator)
        following, reward, done = world.step(action)
        inputs[number] = torch.from_numpy(np.concatenate([obs, action]).astype(np.float32))
        outputs[number] = torch.from_numpy(following[:2] - obs[:2])
        rewards.append(reward)
        obs = following
        #: step obs=obs reward=reward count=number net=model steady=yes
        if done:
            ended += 1
            #: episode reward=reward count=ended net=model steady=yes
            obs = world.reset()
        for _ in range(4):
            rows = torch.randint(0, number + 1, (64,))
            loss = (model(inputs[rows]) - outputs[rows]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=number net=model
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=340)
    args = parser.parse_args()
    tic = time.perf_counter()
    rewards = main(args.plans)
    print(f"mean reward {np.mean(rewards[-60:]):.3f}")
    print(f"loop {time.perf_counter() - tic:.3f} s")
