# type: ignore
"""A broker coroutine hands episodes of three games to a learner; actor-critic by hand."""

import argparse
import asyncio
import time

import numpy as np
import torch
from torch import nn

#: length --episodes 1500
#: imports

torch.set_num_threads(1)

#: globals


class Corridor:
    """Walk to the end that the first observation tells of."""

    def __init__(self, length, seed):
        self.length, self.rng = length, np.random.default_rng(seed)

    def reset(self):
        self.at, self.t, self.side = 0, 0, int(self.rng.integers(2)) * 2 - 1
        #: reset count=self.t
        return np.array([0.0, self.side, 1.0, 0.0], np.float32)

    def step(self, action):
        self.at += 2 * action - 1
        self.t += 1
        reached = abs(self.at) == self.length
        reward = float(self.at * self.side > 0) if reached else -0.02
        obs = np.array([self.at / self.length, self.side, 0.0, self.t / 50], np.float32)
        #: env obs=obs reward=reward count=self.t
        return obs, reward, reached or self.t == 50


async def player(game, net, rng, episodes):
    number = 0
    while True:
        obs, done = game.reset(), False
        seen, actions, rewards = [], [], []
        while not done:
            with torch.no_grad():
                logit = float(net(torch.from_numpy(obs))[0])
            action = int(rng.random() < 1 / (1 + np.exp(-logit)))
            seen.append(obs)
            actions.append(action)
            obs, reward, done = game.step(action)
            rewards.append(reward)
            #: step obs=obs reward=reward count=len(rewards) net=net
        number += 1
        #: episode reward=sum(rewards) count=number net=net obs=obs
        await episodes.put((seen, actions, rewards))


async def broker(incoming, outgoing, size=8):
    while True:
        await outgoing.put([await incoming.get() for _ in range(size)])


def returns_of(rewards):
    result, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + 0.97 * running
        result.append(running)
    return result[::-1]


async def learner(net, batches, num_batches):
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, fused=True)
    means = []
    for number in range(num_batches):
        batch = await batches.get()
        obs = torch.from_numpy(np.concatenate([seen for seen, _, _ in batch]))
        actions = torch.tensor([float(a) for _, taken, _ in batch for a in taken])
        returns = torch.tensor([r for _, _, rewards in batch for r in returns_of(rewards)])
        for _ in range(4):
            logit, value = net(obs).T
            log_prob = nn.functional.logsigmoid(torch.where(actions > 0, logit, -logit))
            advantage = (returns - value).detach()
            loss = (value - returns).pow(2).mean() - (advantage * log_prob).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=number net=net
        means.append(sum(sum(rewards) for _, _, rewards in batch) / len(batch))
    return means


async def main(num_episodes):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    episodes, batches = asyncio.Queue(4), asyncio.Queue(2)
    rng = np.random.default_rng(1)
    games = [Corridor(length, seed=length) for length in (5, 8, 11)]
    #: setup net=net
    #: asetup
    start = time.perf_counter()
    tasks = [asyncio.create_task(player(game, net, rng, episodes)) for game in games]
    tasks.append(asyncio.create_task(broker(episodes, batches)))
    means = await learner(net, batches, num_episodes // 8)
    for task in tasks:
        task.cancel()
    print(f"mean return {np.mean(means[-10:]):.3f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=1500)
    asyncio.run(main(parser.parse_args().episodes))
