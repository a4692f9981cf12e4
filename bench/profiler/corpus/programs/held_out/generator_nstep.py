# type: ignore
"""n-step Q-learning with chained generators: steps, n-step returns, batches, updates."""

import argparse
import collections
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --updates 3300
#: imports

torch.set_num_threads(1)
torch.manual_seed(6)
RNG = np.random.default_rng(6)
GAMMA = 0.99

#: globals


def steps(env, choose):
    obs, _ = env.reset(seed=6)
    number = 0
    while True:
        action = choose(obs)
        following, reward, terminated, truncated, _ = env.step(action)
        yield obs, action, reward, following, terminated, truncated
        number += 1
        obs = following
        #: step obs=obs reward=reward count=number steady=yes
        if terminated or truncated:
            #: episode count=number reward=float(reward)
            obs, _ = env.reset()


def n_step(source, n=3):
    pending = collections.deque()
    for obs, action, reward, following, terminated, truncated in source:
        pending.append((obs, action, reward))
        is_end = terminated or truncated
        while len(pending) == n or (is_end and pending):
            total = sum(GAMMA**k * one[2] for k, one in enumerate(pending))
            first_obs, first_action, _ = pending.popleft()
            yield first_obs, first_action, total, following, float(terminated)


def shuffled(source, capacity, size):
    obs = np.zeros((capacity, 2, 4), np.float32)
    rest = np.zeros((capacity, 3), np.float32)
    for number, (first, action, total, last, end) in enumerate(source):
        at = number % capacity
        obs[at, 0], obs[at, 1], rest[at] = first, last, (action, total, end)
        if number < 200:
            continue
        rows = RNG.integers(0, min(number, capacity), size)
        #: sample count=number steady=yes
        yield torch.from_numpy(obs[rows]), torch.from_numpy(rest[rows])


class Learner:
    def __init__(self):
        self.q = nn.Sequential(
            nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
        )
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.optimizer = torch.optim.RMSprop(self.q.parameters(), 5e-4, foreach=True)

    def choose(self, obs):
        if RNG.random() < 0.1:
            return int(RNG.integers(2))
        with torch.no_grad():
            return int(self.q(torch.from_numpy(obs)).argmax())

    def losses(self, batches):
        for update, (obs, rest) in enumerate(batches, 1):
            action, total, end = rest.T
            with torch.no_grad():
                goal = total + GAMMA**3 * (1 - end) * self.target(obs[:, 1]).amax(1)
            value = self.q(obs[:, 0]).gather(1, action.long()[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(value, goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            #: update count=update net=self.q steady=yes
            if update % 100 == 0:
                self.target.load_state_dict(self.q.state_dict())
            yield loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=3300)
    updates = parser.parse_args().updates
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=1
    learner = Learner()
    pipeline = learner.losses(shuffled(n_step(steps(env, learner.choose)), 10_000, 64))
    #: setup net=learner.q
    began = time.perf_counter()
    seen = [loss for loss, _ in zip(pipeline, range(updates), strict=False)]
    print(f"mean loss {float(torch.stack(seen).mean()):.3f}")
    print(f"loop {time.perf_counter() - began:.3f} s")


if __name__ == "__main__":
    main()
