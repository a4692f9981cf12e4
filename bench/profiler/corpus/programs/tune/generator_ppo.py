# type: ignore
"""Rollouts as a generator, minibatches as another, an update for each of these."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --rollouts 53
#: imports

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)

#: globals


def fragments(env, policy, length):
    """Yields observations, actions, log-probabilities and returns of some steps."""
    obs, _ = env.reset(seed=0)
    episode, number = 0.0, 0
    while True:
        seen = np.zeros((length, 4), np.float32)
        actions = np.zeros(length, np.int64)
        rewards, ends = np.zeros(length), np.zeros(length, bool)
        old = np.zeros(length, np.float32)
        for t in range(length):
            with torch.no_grad():
                log_probs = policy(torch.from_numpy(obs)).log_softmax(-1).numpy()
            action = int(rng.random() > np.exp(log_probs[0]))
            seen[t], actions[t], old[t] = obs, action, log_probs[action]
            obs, rewards[t], terminated, truncated, _ = env.step(action)
            episode += rewards[t]
            #: step obs=obs reward=float(rewards[t]) count=t net=policy
            if terminated or truncated:
                ends[t] = True
                #: episode reward=float(episode) count=t net=policy
                obs, episode = env.reset()[0], 0.0
        number += 1
        yield number, seen, actions, old, discounted(rewards, ends)


def discounted(rewards, ends, gamma=0.98):
    result, running = [], 0.0
    for reward, end in zip(rewards[::-1].tolist(), ends[::-1].tolist(), strict=True):
        running = reward + gamma * running * (not end)
        result.append(running)
    return np.array(result[::-1], np.float32)


def minibatches(columns, epochs, size):
    columns = [torch.from_numpy(column) for column in columns]
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(columns[0])))
        for rows in order.split(size):
            #: sample
            yield [column[rows] for column in columns]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=53)
    args = parser.parse_args()
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=1
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    both = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(both.parameters(), 3e-3, fused=True)
    #: setup net=both
    began = time.perf_counter()
    for number, *columns in fragments(env, policy, 512):
        for obs, action, old, goal in minibatches(columns, epochs=6, size=128):
            estimate = value(obs)[:, 0]
            advantage = (goal - estimate).detach()
            log_prob = policy(obs).log_softmax(-1).gather(1, action[:, None])[:, 0]
            ratio = (log_prob - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = (estimate - goal).pow(2).mean() - 10 * gain
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=number net=both reward=float(number)
        if number == args.rollouts:
            break
    print(f"mean return to go {columns[-1].mean():.1f}")
    print(f"loop {time.perf_counter() - began:.3f} s")


if __name__ == "__main__":
    main()
