# type: ignore
"""A sweep of exploration rates for a gambler's bandit, spread over processes."""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np

#: length --runs 50
#: imports

#: globals


class Machine:
    def __init__(self, rng, arms):
        self.means = rng.normal(size=arms)
        self.noise = rng.normal(size=20_000).tolist()
        self.pulls = 0

    def pull(self, arm):
        self.pulls += 1
        reward = float(self.means[arm]) + self.noise[self.pulls % 20_000]
        #: env reward=reward count=self.pulls parallel=2
        return reward


class EpsilonGreedy:
    def __init__(self, arms, epsilon, rng, horizon):
        self.values, self.counts = [0.0] * arms, [0] * arms
        self.explores = (rng.random(horizon) < epsilon).tolist()
        self.random_arms = rng.integers(0, arms, horizon).tolist()

    def choose(self, step):
        if self.explores[step]:
            return self.random_arms[step]
        return self.values.index(max(self.values))

    def learn(self, arm, reward):
        self.counts[arm] += 1
        self.values[arm] += (reward - self.values[arm]) / self.counts[arm]


def run(epsilon, seed, horizon):
    rng = np.random.default_rng(seed)
    machine = Machine(rng, 10)
    agent = EpsilonGreedy(10, epsilon, rng, horizon)
    total = 0.0
    for step in range(horizon):
        arm = agent.choose(step)
        reward = machine.pull(arm)
        agent.learn(arm, reward)
        total += reward
        #: worker reward=reward count=step parallel=2
    return epsilon, total / horizon


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--horizon", type=int, default=150_000)
    args = parser.parse_args()
    rates = [0.01, 0.05, 0.1, 0.2]
    results = {rate: [] for rate in rates}
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        #: setup
        jobs = [
            pool.submit(run, rates[number % 4], number, args.horizon) for number in range(args.runs)
        ]
        for number, job in enumerate(as_completed(jobs)):
            epsilon, mean = job.result()
            results[epsilon].append(mean)
            #: update reward=mean count=number steady=yes
    for rate, means in results.items():
        print(f"{rate}: {np.mean(means):.3f}" if means else f"{rate}: none")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
