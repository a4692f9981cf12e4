# type: ignore
"""Evolution strategies for CartPole with a pool of processes."""

import argparse
import multiprocessing
import time

import gymnasium as gym
import numpy as np

#: length --generations 75
#: imports

#: globals


ENV = None


def start_worker():
    global ENV
    ENV = gym.make("CartPole-v1")


def evaluate(task):
    """Sum of rewards of a linear policy over two episodes of at most 100 steps."""
    weights, seed = task
    total = 0.0
    for episode in range(2):
        obs, _ = ENV.reset(seed=seed + episode)
        for step in range(100):
            obs, reward, terminated, _, _ = ENV.step(int(weights @ obs > 0))
            total += reward
            #: worker obs=obs reward=reward count=step parallel=2
            if terminated:
                break
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=75)
    parser.add_argument("--population", type=int, default=64)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    mean, history = rng.normal(0, 0.01, 4), []
    with multiprocessing.Pool(2, start_worker) as pool:
        #: setup
        began = time.perf_counter()
        for generation in range(args.generations):
            noise = rng.normal(size=(args.population, 4))
            tasks = [(mean + 0.2 * one, 100 + generation) for one in noise]
            totals = np.array(pool.map(evaluate, tasks, chunksize=args.population // 4))
            ranks = totals.argsort().argsort() / (args.population - 1) - 0.5
            mean = mean + 0.3 * ranks @ noise / args.population
            history.append(float(totals.mean()))
            #: update reward=history[-1] count=generation obs=mean steady=yes
        took = time.perf_counter() - began
    print(f"mean of a generation {history[0]:.1f} to {history[-1]:.1f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    main()
