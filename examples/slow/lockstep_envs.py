"""Environments that step together. A step takes 3 ms, one step in ten takes 100 ms.

    hotloop profile examples/slow/lockstep_envs.py
    hotloop profile examples/slow/lockstep_envs.py --healthy

Stable-Baselines3's SubprocVecEnv waits for the slowest environment at every step. In the healthy
twin, each process collects fragments of many steps by itself, without waiting for the others.
"""

from __future__ import annotations

import argparse
import time
from multiprocessing import get_context

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.vec_env import SubprocVecEnv

FRAGMENT = 20


class Simulator(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, seed, options):
        self.rng, self.options = np.random.default_rng(seed), options

    def reset(self, *, seed=None, options=None):
        return self.rng.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action):
        is_slow = self.rng.random() < self.options.slow_share
        time.sleep((self.options.slow_ms if is_slow else self.options.fast_ms) / 1e3)
        return self.reset()[0], float(action), False, False, {}


def choose(weights, obs):
    return (obs @ weights > 0).astype(np.int64)


def learn(weights, obs, reward):
    weights += 1e-3 * (obs * (reward - reward.mean())[:, None]).mean(0)


def run_in_lockstep(options, weights):
    envs = SubprocVecEnv(
        [lambda seed=seed: Simulator(seed, options) for seed in range(options.envs)],
        start_method="fork",
    )
    obs = envs.reset()
    for _ in range(options.steps // FRAGMENT):
        observations, rewards = [], []
        for _ in range(FRAGMENT):
            observations.append(obs)
            obs, reward, _, _ = envs.step(choose(weights, obs))
            rewards.append(reward)
        learn(weights, np.concatenate(observations), np.concatenate(rewards))
    envs.close()


def collect(seed, options, shared, remaining, fragments):
    """Collect fragments in one process, until the shared number of remaining ones is 0."""
    env = Simulator(seed, options)
    obs, _ = env.reset()
    weights = np.frombuffer(shared)
    while True:
        with remaining.get_lock():
            if remaining.value == 0:
                return
            remaining.value -= 1
        observations, rewards = [], []
        for _ in range(FRAGMENT):
            observations.append(obs)
            obs, reward, *_ = env.step(choose(weights, obs))
            rewards.append(reward)
        fragments.put((np.array(observations), np.array(rewards)))


def run_by_fragments(options, weights):
    context = get_context("fork")
    shared = context.RawArray("d", weights.tolist())
    num_fragments = options.steps // FRAGMENT * options.envs
    remaining, fragments = context.Value("i", num_fragments), context.Queue()
    arguments = options, shared, remaining, fragments
    workers = [
        context.Process(target=collect, args=(seed, *arguments)) for seed in range(options.envs)
    ]
    for worker in workers:
        worker.start()
    published = np.frombuffer(shared)
    for _ in range(num_fragments):
        learn(published, *fragments.get())
    for worker in workers:
        worker.join()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="collect fragments")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400, help="steps of each environment")
    parser.add_argument("--fast-ms", type=float, default=3.0)
    parser.add_argument("--slow-ms", type=float, default=100.0)
    parser.add_argument("--slow-share", type=float, default=0.1)
    options = parser.parse_args()
    start_s = time.perf_counter()
    (run_by_fragments if options.healthy else run_in_lockstep)(options, np.zeros(4))
    seconds = time.perf_counter() - start_s
    total = options.steps // FRAGMENT * FRAGMENT * options.envs
    print(f"{total:,} steps: {seconds:.2f} s, {total / seconds:,.0f} a second")


if __name__ == "__main__":
    main()
