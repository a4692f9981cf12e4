# type: ignore
"""REINFORCE with a learned baseline on Acrobot, several environments side by side."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --iterations 78
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=78)
parser.add_argument("--envs", type=int, default=6)
parser.add_argument("--horizon", type=int, default=100)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=2)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)

#: globals


def make():
    env = gym.make("Acrobot-v1")
    #: wrap env=env copies=6
    return env


envs = gym.vector.SyncVectorEnv([make] * args.envs)
policy = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
baseline = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *baseline.parameters()], lr=2e-3, fused=True)
powers = args.gamma ** torch.arange(args.horizon)
obs, _ = envs.reset(seed=args.seed)
means = []
#: setup net=policy
begin = time.perf_counter()
for iteration in range(args.iterations):
    seen = np.zeros((args.horizon, args.envs, 6), np.float32)
    taken = np.zeros((args.horizon, args.envs), np.int64)
    gained = np.zeros((args.horizon, args.envs), np.float32)
    for t in range(args.horizon):
        seen[t] = obs
        with torch.no_grad():
            logits = policy(torch.from_numpy(obs))
            noise = -torch.log(-torch.log(torch.rand_like(logits)))
            taken[t] = (logits + noise).argmax(-1).numpy()
        obs, gained[t], _, _, _ = envs.step(taken[t])
        #: step obs=obs[0] reward=float(gained[t,0]) count=t net=policy
    rewards = torch.from_numpy(gained)
    discounted = (rewards * powers[:, None]).flip(0).cumsum(0).flip(0) / powers[:, None]
    inputs = torch.from_numpy(seen)
    for _ in range(4):
        values = baseline(inputs).squeeze(-1)
        log_probs = policy(inputs).log_softmax(-1)
        chosen = log_probs.gather(-1, torch.from_numpy(taken)[..., None]).squeeze(-1)
        advantage = discounted - values.detach()
        loss = -(chosen * advantage).mean() + (values - discounted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        #: update reward=float(gained.mean()) count=iteration net=policy
    means.append(float(gained.sum(0).mean()))
    #: episode reward=means[-1] count=iteration net=policy obs=obs[0] steady=yes
print(f"mean return of the last iterations {np.mean(means[-5:]):.1f}")
print(f"loop {time.perf_counter() - begin:.3f} s")
