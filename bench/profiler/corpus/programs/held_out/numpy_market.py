# type: ignore
"""A trading policy on synthetic prices, improved by the cross-entropy method."""

import argparse
import time

import numpy as np
import pandas as pd

#: length --generations 80
#: imports

#: globals


def prices(days, seed):
    rng = np.random.default_rng(seed)
    changes = rng.normal(0.0, 0.01, days)
    for t in range(1, days):
        changes[t] += 0.15 * changes[t - 1]
    return pd.Series(100.0 * np.exp(np.cumsum(changes)), pd.date_range("2000-01-01", periods=days))


def indicators(price):
    """Return features of each day as an array, computed once for all episodes."""
    change = price.pct_change()
    table = pd.DataFrame(
        {
            "change": change,
            "week": change.rolling(5).mean(),
            "month": change.rolling(20).mean(),
            "spread": price / price.rolling(20).mean() - 1.0,
            "risk": change.rolling(20).std(),
        }
    ).dropna()
    scaled = (table - table.mean()) / table.std()
    return scaled.to_numpy(), change.loc[table.index].to_numpy()


class Market:
    def __init__(self, features, changes, length, rng):
        self.features, self.changes = features, changes
        self.length, self.rng = length, rng

    def reset(self):
        self.t = int(self.rng.integers(0, len(self.changes) - self.length - 1))
        self.end, self.position = self.t + self.length, 0.0
        return self.observe()

    def observe(self):
        return np.append(self.features[self.t], self.position)

    def step(self, wanted):
        cost = 0.0002 * abs(wanted - self.position)
        self.position = wanted
        self.t += 1
        reward = self.position * self.changes[self.t] - cost
        obs = self.observe()
        #: env obs=obs reward=reward count=self.t
        return obs, reward, self.t == self.end


def play(env, weights):
    obs, total, done, t = env.reset(), 0.0, False, 0
    while not done:
        obs, reward, done = env.step(float(np.tanh(obs @ weights)))
        total += reward
        t += 1
        #: step obs=obs reward=reward count=t
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=80)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    env = Market(*indicators(prices(4_000, seed=0)), 250, rng)
    mean, spread = np.zeros(6), np.ones(6)
    #: setup
    start = time.perf_counter()
    for generation in range(args.generations):
        candidates = rng.normal(mean, spread, (40, 6))
        returns = np.empty(len(candidates))
        for number, weights in enumerate(candidates):
            returns[number] = np.mean([play(env, weights) for _ in range(4)])
            #: episode count=number reward=returns[number]
        best = candidates[np.argsort(returns)[-8:]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.02
        #: update count=generation reward=returns.max() steady=yes
    print(f"last mean return {returns.mean():.4f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
