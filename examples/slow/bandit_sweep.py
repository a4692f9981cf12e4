"""A sweep of ε-greedy bandits over a process pool, slow for three reasons.

    hotloop profile examples/slow/bandit_sweep.py
    hotloop profile examples/slow/bandit_sweep.py --fix config
    hotloop profile examples/slow/bandit_sweep.py --healthy

* config: the loop reads and writes values in omegaconf's configuration objects.
* logging: debug messages are f-strings, formatted although logging discards them.
* argmax: the maximum is searched in Python lists, with ties drawn at random.

`--fix` removes one of them and can be repeated. `--healthy` removes all.
"""

from __future__ import annotations

import argparse
import logging
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from omegaconf import OmegaConf

CAUSES = ("config", "logging", "argmax")
SETTINGS = {"agent": {"epsilon": 0.1, "step_size": 0.1}, "bandit": {"mean": 0.0, "noise": 1.0}}
log = logging.getLogger("bandit")


class Agent:
    def __init__(self, settings, num_arms, rng, fixed):
        self.settings, self.rng, self.fixed = settings, rng, fixed
        self.values = np.zeros(num_arms) if "argmax" in fixed else settings["values"]
        self.counts = np.zeros(num_arms, np.int64)

    def argmax(self):
        """Return the arm with the largest value. Ties are broken at random."""
        values = np.array(list(self.values.values()))
        best = np.argwhere(values == np.max(values)).flatten().tolist()
        index = self.rng.choice(best) if len(best) > 1 else best[0]
        return list(self.values.keys())[index]

    def choose(self):
        if self.rng.random() < self.settings["agent"]["epsilon"]:
            return int(self.rng.integers(len(self.values)))
        return int(self.values.argmax()) if "argmax" in self.fixed else self.argmax()

    def learn(self, arm, reward):
        self.counts[arm] += 1
        self.values[arm] += self.settings["agent"]["step_size"] * (reward - self.values[arm])
        if "logging" in self.fixed:
            log.debug("arm %s paid %s; pulls %s", arm, reward, self.counts)
        else:
            log.debug(f"arm {arm} paid {reward}; pulls {self.counts}")


def play(seed, settings, num_steps, num_draws, fixed):
    """Return the mean reward of one run."""
    rng, num_arms = np.random.default_rng(seed), len(settings["values"])
    agent = Agent(settings, num_arms, rng, fixed)
    true_values = rng.normal(settings["bandit"]["mean"], 1.0, num_arms)
    total = 0.0
    for _ in range(num_steps):
        arm = agent.choose()
        rewards = rng.normal(true_values[arm], settings["bandit"]["noise"], num_draws)
        reward = float(rewards.mean())
        agent.learn(arm, reward)
        total += reward
    return total / num_steps


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="fix all three causes")
    parser.add_argument("--fix", action="append", choices=CAUSES, default=[])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--draws", type=int, default=1, help="draws averaged to a reward")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    fixed = frozenset(CAUSES if options.healthy else options.fix)
    values = dict.fromkeys(range(options.arms), 0.0)
    settings = OmegaConf.create({**SETTINGS, "values": values})
    if "config" in fixed:
        settings = OmegaConf.to_container(settings)
    start_s = time.perf_counter()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
        results = [
            pool.submit(play, seed, settings, options.steps, options.draws, fixed)
            for seed in range(options.runs)
        ]
        mean = np.mean([result.result() for result in results])
    seconds = time.perf_counter() - start_s
    print(f"{options.runs} runs × {options.steps} steps: mean reward {mean:.3f}, {seconds:.2f} s")


if __name__ == "__main__":
    main()
