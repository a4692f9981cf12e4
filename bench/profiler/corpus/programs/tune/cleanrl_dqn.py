# type: ignore
"""DQN for CartPole, one file, no classes but the network."""

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim

#: length --total-timesteps 5500
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--total-timesteps", type=int, default=5500)
parser.add_argument("--buffer-size", type=int, default=10000)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--learning-starts", type=int, default=500)
parser.add_argument("--target-frequency", type=int, default=250)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

#: globals

env = gym.make("CartPole-v1")
#: wrap env=env copies=1
q_network = nn.Sequential(
    nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
)
target_network = copy.deepcopy(q_network)
optimizer = optim.Adam(q_network.parameters(), lr=5e-4, fused=True)

states = np.zeros((args.buffer_size, 4), np.float32)
next_states = np.zeros((args.buffer_size, 4), np.float32)
actions = np.zeros((args.buffer_size, 1), np.int64)
rewards = np.zeros(args.buffer_size, np.float32)
dones = np.zeros(args.buffer_size, np.float32)
size = 0


def sample():
    chosen = rng.integers(0, size, args.batch_size)
    #: sample
    columns = (states, actions, rewards, next_states, dones)
    return [torch.from_numpy(column[chosen]) for column in columns]


#: setup net=q_network

obs, _ = env.reset(seed=args.seed)
episode_return, returns = 0.0, []
start_time = time.perf_counter()
for global_step in range(args.total_timesteps):
    epsilon = max(0.05, 1.0 - global_step / (0.5 * args.total_timesteps))
    if rng.random() < epsilon:
        action = int(rng.integers(2))
    else:
        with torch.no_grad():
            action = int(q_network(torch.from_numpy(obs)).argmax())
    next_obs, reward, terminated, truncated, _ = env.step(action)
    at = global_step % args.buffer_size
    states[at], actions[at], rewards[at] = obs, action, reward
    next_states[at], dones[at] = next_obs, terminated
    size = min(global_step + 1, args.buffer_size)
    obs = next_obs
    episode_return += reward
    #: step obs=obs reward=reward count=global_step net=q_network steady=yes
    if terminated or truncated:
        returns.append(episode_return)
        #: episode obs=obs reward=episode_return count=len(returns) net=q_network steady=yes
        episode_return = 0.0
        obs, _ = env.reset()

    if global_step >= args.learning_starts:
        s, a, r, s2, d = sample()
        with torch.no_grad():
            target = r + 0.99 * target_network(s2).max(1).values * (1 - d)
        loss = nn.functional.mse_loss(q_network(s).gather(1, a).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        #: update reward=reward count=global_step net=q_network steady=yes
        if global_step % args.target_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())

print(f"{len(returns)} episodes, the last ten {np.mean(returns[-10:]):.1f}")
print(f"loop {time.perf_counter() - start_time:.3f} s")
