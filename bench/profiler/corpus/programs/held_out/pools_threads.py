# type: ignore
"""MuJoCo environments stepped in threads, which they allow as they let go of the interpreter."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np

#: length --generations 36
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--generations", type=int, default=36)
parser.add_argument("--population", type=int, default=12)
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

#: globals


def make_env(number):
    env = gym.make("HalfCheetah-v5", frame_skip=10)
    env.reset(seed=number)
    return env


def evaluate(env, weights, steps):
    obs, _ = env.reset(seed=7)
    total = 0.0
    for step in range(steps):
        action = np.tanh(weights @ obs)
        obs, reward, _, _, _ = env.step(action)
        total += float(reward)
        #: worker obs=obs reward=float(reward) count=step
    return total


rng = np.random.default_rng(args.seed)
envs = [make_env(number) for number in range(2)]
mean = np.zeros((6, 17))
deviation = 0.3
history = []


def half(number, candidates):
    return [evaluate(envs[number], one, args.steps) for one in candidates]


#: setup
began = time.perf_counter()
with ThreadPoolExecutor(2) as pool:
    for generation in range(args.generations):
        candidates = mean + deviation * rng.normal(size=(args.population, 6, 17))
        jobs = [pool.submit(half, k, candidates[k::2]) for k in range(2)]
        totals = np.empty(args.population)
        for k, job in enumerate(jobs):
            totals[k::2] = job.result()
        elite = candidates[totals.argsort()[-3:]]
        mean = elite.mean(0)
        deviation *= 0.98
        history.append(float(totals.mean()))
        #: update reward=history[-1] count=generation obs=mean[0] steady=yes
took = time.perf_counter() - began
print(f"mean return {history[0]:.1f} to {history[-1]:.1f}")
print(f"loop {took:.3f} s")
