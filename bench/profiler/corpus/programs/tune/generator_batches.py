# type: ignore
"""Fitted Q iteration: a generator plays, a generator makes batches, the learner consumes them."""

import argparse
import itertools
import time

import numpy as np
import torch
from torch import nn

#: length --num-batches 4200
#: imports

torch.set_num_threads(1)

#: globals


class Swing:
    """A pendulum with three torques, plain floats."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle, self.speed = float(self.rng.uniform(-3, 3)), 0.0
        self.left = 150
        return self.angle, self.speed

    def step(self, action):
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle * angle) - 0.1 * self.speed * self.speed
        self.speed = min(max(self.speed + 0.05 * (action - 1) * 15.0 - 0.3 * angle, -8.0), 8.0)
        self.angle += 0.05 * self.speed
        self.left -= 1
        #: env reward=reward count=self.left
        return (self.angle, self.speed), reward, self.left == 0


def transitions(seed):
    env, rng = Swing(seed), np.random.default_rng(seed)
    for episode in itertools.count():
        state, total = env.reset(), 0.0
        actions = rng.integers(0, 3, 150).tolist()
        for action in actions:
            following, reward, _ = env.step(action)
            yield (*state, action, reward, *following)
            state, total = following, total + reward
            #: step reward=reward count=episode
        #: episode reward=total count=episode steady=yes


def batches(source, capacity, per_batch, size):
    """Adds some transitions, then draws."""
    rng = np.random.default_rng(9)
    table = np.zeros((capacity, 6), np.float32)
    for number in itertools.count(1):
        rows = list(itertools.islice(source, per_batch))
        at = np.arange((number - 1) * per_batch, number * per_batch) % capacity
        table[at] = rows
        chosen = rng.integers(0, min(number * per_batch, capacity), size)
        #: sample count=number steady=yes
        yield torch.from_numpy(table[chosen]).split([2, 1, 1, 2], dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-batches", type=int, default=4200)
    args = parser.parse_args()
    torch.manual_seed(2)
    q = nn.Sequential(
        nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3)
    )
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
    stream = batches(transitions(seed=1), 20_000, 4, 128)
    losses = []
    #: setup net=q
    start = time.perf_counter()
    for update, (state, action, reward, following) in enumerate(stream):
        with torch.no_grad():
            goal = 0.1 * reward[:, 0] + 0.97 * q(following).amax(1)
        loss = (q(state).gather(1, action.long())[:, 0] - goal).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        #: update count=update net=q obs=state[0].numpy() reward=float(reward[0]) steady=yes
        if update % 100 == 0:
            losses.append(float(loss.detach()))
        if update + 1 == args.num_batches:
            break
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"loop {time.perf_counter() - start:.3f} s")
