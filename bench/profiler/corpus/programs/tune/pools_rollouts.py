# type: ignore
"""REINFORCE on Pendulum whose rollouts come from a process pool executor."""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

import gymnasium as gym
import numpy as np
import torch
from torch import nn

#: length --iterations 38
#: imports

torch.set_num_threads(1)

#: globals


def linear_layers(net):
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in net[::2]]


def start_worker():
    global worker_env
    env = gym.make("Pendulum-v1")
    #: wrap env=env parallel=2
    worker_env = env


def rollout(layers, seed, steps=200):
    """One episode with the policy as plain NumPy."""
    env = worker_env
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    seen = np.zeros((steps, 3), np.float32)
    actions, rewards = np.zeros(steps, np.float32), np.zeros(steps, np.float32)
    noise = 0.5 * rng.normal(size=steps)
    for t in range(steps):
        hidden = np.tanh(layers[0][0] @ obs + layers[0][1])
        action = (layers[1][0] @ hidden + layers[1][1])[0] + noise[t]
        seen[t], actions[t] = obs, action
        obs, rewards[t], _, _, _ = env.step(np.clip([action], -2, 2))
        #: worker obs=obs reward=float(rewards[t]) count=t parallel=2
    return seen, actions, rewards


def main(iterations, rollouts=16):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
    value = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-3, fused=True)
    powers = 0.95 ** torch.arange(200.0)
    means = []
    with ProcessPoolExecutor(2, initializer=start_worker) as pool:
        #: setup net=policy
        started = time.perf_counter()
        for iteration in range(iterations):
            layers = linear_layers(policy)
            seeds = range(iteration * rollouts, (iteration + 1) * rollouts)
            parts = pool.map(rollout, [layers] * rollouts, seeds, chunksize=4)
            seen, actions, rewards = (
                torch.from_numpy(np.stack(column)) for column in zip(*parts, strict=True)
            )
            scaled = 0.1 * (rewards + 6.0)
            returns = torch.zeros_like(scaled)
            for start in range(0, 200, 50):
                part = scaled[:, start : start + 50] * powers[:50]
                returns[:, start : start + 50] = part.flip(1).cumsum(1).flip(1) / powers[:50]
            for update in range(6):
                baseline = value(seen)[..., 0]
                errors = actions - policy(seen)[..., 0]
                loss = (returns - baseline).pow(2).mean()
                loss = loss + ((returns - baseline).detach() * errors.pow(2)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                #: update count=update net=policy reward=float(update)
            means.append(float(rewards.sum(1).mean()))
            #: episode count=iteration net=policy reward=means[-1] steady=yes
        took = time.perf_counter() - started
    print(f"mean return {means[0]:.0f} to {means[-1]:.0f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=38)
    main(parser.parse_args().iterations)
