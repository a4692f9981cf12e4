# type: ignore
"""Soft actor-critic on Pendulum in a single file."""

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Normal

#: length --steps 1500
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--start", type=int, default=200)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--tau", type=float, default=0.005)
parser.add_argument("--alpha", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=0)
cfg = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(cfg.seed)
rng = np.random.default_rng(cfg.seed)

#: globals


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_out)
    )


env = gym.make("Pendulum-v1")
#: wrap env=env copies=1
actor, critic_a, critic_b = mlp(3, 2), mlp(4, 1), mlp(4, 1)
critics = nn.ModuleList([critic_a, critic_b])
targets = copy.deepcopy(critics).requires_grad_(False)
actor_opt = optim.Adam(actor.parameters(), lr=3e-4, fused=True)
critic_opt = optim.Adam(critics.parameters(), lr=1e-3, fused=True)


def policy(state):
    mean, log_std = actor(state).chunk(2, -1)
    dist = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
    raw = dist.rsample()
    action = torch.tanh(raw)
    log_prob = dist.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
    return 2 * action, log_prob.sum(-1, keepdim=True)


data = np.zeros((cfg.steps, 3 + 1 + 1 + 3 + 1), np.float32)


def draw(filled):
    rows = rng.integers(0, filled, cfg.batch)
    #: sample count=filled steady=yes
    return torch.from_numpy(data[rows]).split([3, 1, 1, 3, 1], 1)


state, _ = env.reset(seed=cfg.seed)
total, totals = 0.0, []
#: setup net=actor
tic = time.perf_counter()
for step in range(cfg.steps):
    if step < cfg.start:
        action = rng.uniform(-2, 2, 1).astype(np.float32)
    else:
        with torch.no_grad():
            action = policy(torch.from_numpy(state))[0].numpy()
    following, reward, terminated, truncated, _ = env.step(action)
    data[step] = np.concatenate([state, action, [0.1 * reward], following, [terminated]])
    state = following
    total += reward
    #: step obs=state reward=reward count=step net=actor steady=yes
    if truncated:
        totals.append(total)
        #: episode reward=total count=len(totals) obs=state net=actor steady=yes
        total = 0.0
        state, _ = env.reset()
    if step < cfg.start:
        continue
    s, a, r, s2, d = draw(step)
    with torch.no_grad():
        a2, log_prob = policy(s2)
        joined = torch.cat([s2, a2], 1)
        q2 = torch.min(targets[0](joined), targets[1](joined)) - cfg.alpha * log_prob
        goal = r + 0.99 * (1 - d) * q2
    joined = torch.cat([s, a], 1)
    critic_loss = (critic_a(joined) - goal).pow(2).mean() + (critic_b(joined) - goal).pow(2).mean()
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    critics.requires_grad_(False)
    new_action, log_prob = policy(s)
    joined = torch.cat([s, new_action], 1)
    actor_loss = (cfg.alpha * log_prob - torch.min(critic_a(joined), critic_b(joined))).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()
    critics.requires_grad_(True)
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), cfg.tau)
    #: update reward=reward count=step net=actor steady=yes
print(f"returns: {[round(one) for one in totals]}")
print(f"loop {time.perf_counter() - tic:.3f} s")
