# type: ignore
"""Environments as coroutines that meet at a batched policy: advantage actor-critic."""

import argparse
import asyncio
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --updates 420
#: imports

torch.set_num_threads(1)
torch.manual_seed(3)

#: globals


class BatchedPolicy:
    """Answers when as many have asked as there are environments."""

    def __init__(self, num):
        self.num, self.waiting = num, []
        self.body = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.logits, self.value = nn.Linear(128, 2), nn.Linear(128, 1)
        self.net = nn.ModuleList([self.body, self.logits, self.value])
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3, fused=True)

    def ask(self, obs):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((obs, answer))
        if len(self.waiting) == self.num:
            self.answer()
        return answer

    def answer(self):
        waiting, self.waiting = self.waiting, []
        with torch.no_grad():
            logits = self.logits(self.body(torch.from_numpy(np.stack([o for o, _ in waiting]))))
            noise = -torch.log(-torch.log(torch.rand_like(logits)))
            actions = (logits + noise).argmax(1).tolist()
        #: update count=len(waiting) net=self.net
        for (_, answer), action in zip(waiting, actions, strict=True):
            answer.set_result(action)

    def learn(self, obs, actions, returns):
        hidden = self.body(obs)
        values = self.value(hidden)[:, 0]
        log_probs = self.logits(hidden).log_softmax(1).gather(1, actions[:, None])[:, 0]
        advantage = (returns - values).detach()
        loss = (returns - values).pow(2).mean() - (advantage * log_probs).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


async def collect(env, obs, policy, length):
    seen, actions, rewards, ends = [], [], [], []
    for t in range(length):
        action = await policy.ask(obs)
        seen.append(obs)
        actions.append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        ends.append(terminated or truncated)
        #: step obs=obs reward=reward count=t
        if ends[-1]:
            #: episode reward=float(t) count=t
            obs, _ = env.reset()
    returns, running = [], 0.0
    for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
        running = reward + 0.98 * running * (not end)
        returns.append(running)
    return obs, seen, actions, returns[::-1]


def make():
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=8
    return env


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=420)
    args = parser.parse_args()
    envs = [make() for _ in range(8)]
    observations = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    policy = BatchedPolicy(len(envs))
    #: setup net=policy.net
    #: asetup
    tic = time.perf_counter()
    for _ in range(args.updates):
        pairs = zip(envs, observations, strict=True)
        parts = await asyncio.gather(*(collect(env, obs, policy, 32) for env, obs in pairs))
        observations = [part[0] for part in parts]
        seen = torch.from_numpy(np.concatenate([part[1] for part in parts]))
        actions = torch.from_numpy(np.concatenate([part[2] for part in parts]))
        returns = torch.from_numpy(np.concatenate([part[3] for part in parts], dtype=np.float32))
        policy.learn(seen, actions, returns)
    print(f"mean return to go {float(returns.mean()):.1f}")
    print(f"loop {time.perf_counter() - tic:.3f} s")


if __name__ == "__main__":
    asyncio.run(main())
