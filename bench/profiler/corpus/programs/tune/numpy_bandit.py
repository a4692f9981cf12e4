# type: ignore
"""Thompson sampling, UCB and greedy on drifting bandits."""

import argparse
import math
import time

import numpy as np

#: length --runs 42
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--runs", type=int, default=42)
parser.add_argument("--horizon", type=int, default=4000)
parser.add_argument("--arms", type=int, default=8)
args = parser.parse_args()

#: globals


class Greedy:
    def __init__(self, arms, rng):
        self.values, self.counts = np.zeros(arms), np.zeros(arms)

    def choose(self, step):
        return int(self.values.argmax())

    def learn(self, arm, reward):
        self.counts[arm] += 1
        self.values[arm] += (reward - self.values[arm]) / self.counts[arm]


class UpperBound(Greedy):
    def choose(self, step):
        if step < len(self.values):
            return step
        bonus = np.sqrt(2 * math.log(step + 1) / self.counts)
        return int((self.values + bonus).argmax())


class Thompson(Greedy):
    def __init__(self, arms, rng):
        super().__init__(arms, rng)
        self.rng = rng

    def choose(self, step):
        deviations = 1 / np.sqrt(self.counts + 1)
        return int((self.values + deviations * self.rng.standard_normal(len(self.values))).argmax())


def run(policy, rng, horizon, arms):
    drift = 0.01 * rng.standard_normal((horizon, arms))
    means = rng.standard_normal(arms) + np.cumsum(drift, axis=0)
    noise = rng.standard_normal(horizon)
    total = 0.0
    for step in range(horizon):
        arm = policy.choose(step)
        reward = float(means[step, arm] + noise[step])
        policy.learn(arm, reward)
        total += reward
        #: step reward=reward count=step obs=policy.values
    return total / horizon


scores = {policy.__name__: [] for policy in (Greedy, UpperBound, Thompson)}
#: setup
began = time.perf_counter()
for number in range(args.runs):
    for policy in (Greedy, UpperBound, Thompson):
        rng = np.random.default_rng([number, 3])
        score = run(policy(args.arms, rng), rng, args.horizon, args.arms)
        scores[policy.__name__].append(score)
        #: episode reward=score count=number
for name, values in scores.items():
    print(f"{name:12} {np.mean(values):.3f}")
print(f"loop {time.perf_counter() - began:.3f} s")
