# type: ignore
"""Policy gradient over whole episodes that a generator yields; NumPy policy, torch value."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --episodes 290
#: imports

torch.set_num_threads(1)

#: globals


def play(env, weights, rng):
    """Yields episodes for ever."""
    obs, _ = env.reset(seed=1)
    while True:
        states, actions, rewards = [], [], []
        done = False
        while not done:
            mean = float(weights @ obs)
            action = mean + 0.5 * rng.normal()
            states.append(obs)
            actions.append(action)
            force = np.array([min(max(action, -2.0), 2.0)], np.float32)
            obs, reward, terminated, truncated, _ = env.step(force)
            rewards.append(float(reward))
            done = terminated or truncated
            #: step obs=obs reward=rewards[-1] count=len(rewards)
        yield np.stack(states), np.array(actions), np.array(rewards)
        obs, _ = env.reset()


def returns_to_go(rewards, gamma=0.97):
    powers = gamma ** np.arange(len(rewards))
    return (rewards * powers)[::-1].cumsum()[::-1] / powers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=290)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = gym.make("Pendulum-v1")
    #: wrap env=env copies=1
    weights = np.zeros(3)
    value = nn.Sequential(
        nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(value.parameters(), 2e-3, fused=True)
    totals = []
    #: setup net=value
    clock = time.perf_counter()
    for number, (states, actions, rewards) in enumerate(play(env, weights, rng), 1):
        goals = returns_to_go(rewards)
        inputs = torch.from_numpy(states.astype(np.float32))
        targets = torch.from_numpy(goals.astype(np.float32))
        for epoch in range(10):
            loss = (value(inputs)[:, 0] - targets).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=epoch net=value reward=float(rewards[0])
        with torch.no_grad():
            advantages = goals - value(inputs)[:, 0].numpy()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        errors = actions - states @ weights
        weights += 0.05 * (advantages * errors) @ states / len(states)
        totals.append(rewards.sum())
        #: episode reward=float(totals[-1]) count=number net=value obs=states[0] steady=yes
        if number == args.episodes:
            break
    print(f"return {np.mean(totals[:10]):.0f} to {np.mean(totals[-10:]):.0f}")
    print(f"loop {time.perf_counter() - clock:.3f} s")


if __name__ == "__main__":
    main()
