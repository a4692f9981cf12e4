# type: ignore
"""Evolution strategies on CartPole, NumPy and one environment."""

import argparse
import time

import gymnasium as gym
import numpy as np

#: length --generations 70
#: imports

#: globals


class Network:
    """Two layers; its weights are one vector."""

    def __init__(self, obs=4, hidden=16):
        self.shapes = (obs, hidden)
        self.num = obs * hidden + hidden

    def load(self, flat):
        obs, hidden = self.shapes
        self.first, self.second = flat[: obs * hidden].reshape(hidden, obs), flat[obs * hidden :]

    def act(self, obs):
        return int(self.second @ np.tanh(self.first @ obs) > 0)


def episode(env, network, seed, limit=150):
    obs, _ = env.reset(seed=seed)
    total = 0.0
    for step in range(limit):
        obs, reward, terminated, _, _ = env.step(network.act(obs))
        total += reward
        #: step obs=obs reward=reward count=step
        if terminated:
            break
    #: episode obs=obs reward=total count=seed
    return total


def ranks(values):
    return values.argsort().argsort() / (len(values) - 1) - 0.5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=70)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--sigma", type=float, default=0.5)
    args = parser.parse_args()
    env = gym.make("CartPole-v1")
    #: wrap env=env copies=1
    rng = np.random.default_rng(0)
    network = Network()
    mean, best = np.zeros(network.num), 0.0
    #: setup
    started = time.perf_counter()
    for generation in range(args.generations):
        half = rng.normal(size=(args.pairs, network.num))
        noise = np.concatenate([half, -half])
        totals = np.empty(len(noise))
        for number, one in enumerate(noise):
            network.load(mean + args.sigma * one)
            totals[number] = episode(env, network, seed=generation)
        mean += 0.5 * ranks(totals) @ noise / len(noise)
        best = max(best, float(totals.mean()))
        #: update reward=best count=generation obs=mean steady=yes
    print(f"best mean return {best:.1f}")
    print(f"loop {time.perf_counter() - started:.3f} s")


if __name__ == "__main__":
    main()
