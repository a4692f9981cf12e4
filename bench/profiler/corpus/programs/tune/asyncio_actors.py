# type: ignore
"""Actors as coroutines put steps into a queue; a learner coroutine takes them out."""

import argparse
import asyncio
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --updates 1800
#: imports

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)

#: globals


async def act(number, q, queue):
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=6
    obs, _ = env.reset(seed=number)
    steps, total = 0, 0.0
    while True:
        if rng.random() < 0.2:
            action = int(rng.integers(2))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(obs)).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        await queue.put((obs, action, reward, following, terminated))
        obs, steps, total = following, steps + 1, total + reward
        #: step obs=obs reward=reward count=steps net=q
        if terminated or truncated:
            #: episode obs=obs reward=total count=steps net=q
            total = 0.0
            obs, _ = env.reset()


class Replay:
    def __init__(self, capacity):
        self.rows = np.zeros((capacity, 11), np.float32)
        self.added = 0

    def add(self, obs, action, reward, following, terminated):
        row = self.rows[self.added % len(self.rows)]
        row[:4], row[4], row[5], row[6:10], row[10] = obs, action, reward, following, terminated
        self.added += 1

    def sample(self, size):
        chosen = rng.integers(0, min(self.added, len(self.rows)), size)
        #: sample count=self.added steady=yes
        return torch.from_numpy(self.rows[chosen]).split([4, 1, 1, 4, 1], 1)


async def learn(q, queue, updates):
    optimizer = torch.optim.Adam(q.parameters(), 1e-3, fused=True)
    replay = Replay(10_000)
    for update in range(updates):
        for _ in range(4):
            replay.add(*await queue.get())
        obs, action, reward, following, end = replay.sample(128)
        with torch.no_grad():
            goal = reward + 0.98 * (1 - end) * q(following).amax(1, keepdim=True)
        loss = nn.functional.smooth_l1_loss(q(obs).gather(1, action.long()), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        #: update count=update net=q steady=yes
    return float(loss.detach())


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1800)
    parser.add_argument("--actors", type=int, default=6)
    args = parser.parse_args()
    q = nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )
    queue = asyncio.Queue(maxsize=64)
    #: setup net=q
    #: asetup
    start = time.perf_counter()
    actors = [asyncio.create_task(act(number, q, queue)) for number in range(args.actors)]
    loss = await learn(q, queue, args.updates)
    for actor in actors:
        actor.cancel()
    print(f"last loss {loss:.4f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    asyncio.run(main())
