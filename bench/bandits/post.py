"""A blog post's bandit program and its author's successive fixes.

The post is "Speeding up a multiarmed bandit by 30x". It shows the code of `argmax` and describes
the rest. This module reconstructs the program: the ε-greedy agent of Sutton and Barto's chapter 2
with sample averages on ten arms, true values ~ N(0, 1), rewards ~ N(true value, 1). It records the
data of both panels of the book's figure 2.2. All four versions are correct and differ only in the
code around the arithmetic:

1. `ConfigurationObjects`: the hot loop uses Hydra's omegaconf objects.
2. `PlainDictionaries`: the same, with the objects converted to dictionaries.
3. `EagerArrays`: NumPy arrays and argmax, and debug messages with an array in an f-string.
4. `LazyMessages`: the logging library formats messages on demand. The author's final version.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
log = logging.getLogger("bandit_seed")

SETTINGS: dict[str, Any] = {
    "agent": {
        "epsilon": 0.1,
        "estimates": dict.fromkeys(range(10), 0.0),
        "counts": dict.fromkeys(range(10), 0),
    },
    "bandit": {
        "mean": 0.0,
        "spread": 1.0,
        "noise": 1.0,
        "true_values": dict.fromkeys(range(10), 0.0),
    },
}

# The author's figures on an unspecified desktop. Those of the two fixes are for a whole program of
# unknown size on eight processes, so only their ratios are meaningful.
PUBLISHED = {
    "configuration_objects": "250 ms a run of 1000 steps, some 10 minutes a grid point",
    "plain_dictionaries": "from over 100 s to below 10",
    "eager_arrays": "3 times slower",
    "lazy_messages": "30 times as fast as the first",
}


@functools.cache
def configuration() -> Any:
    """Return the settings in the form that Hydra passes to a program."""
    return importlib.import_module("omegaconf").OmegaConf.create(SETTINGS)


class ConfigurationObjects:
    """Version 1, which stores values in configuration objects."""

    def __init__(self, random: np.random.RandomState) -> None:
        self.random = random
        self.settings = configuration()
        self.bandit = self.convert(self.settings.bandit.copy())
        self.agent = self.convert(self.settings.agent.copy())
        self.true_values = self.bandit["true_values"]
        for arm in list(self.true_values.keys()):
            value = self.random.normal(self.bandit["mean"], self.bandit["spread"])
            self.true_values[arm] = float(value)
        self.best = max(self.true_values.keys(), key=lambda arm: self.true_values[arm])
        self.estimates = self.agent["estimates"]
        self.counts = self.agent["counts"]

    def convert(self, part: Any) -> Any:
        """Return a part of the configuration unchanged."""
        return part

    def argmax(self) -> int:
        """Return the arm with the largest estimate, random among equals, as in the post."""
        estimates = np.array(list(self.estimates.values()))
        best = np.argwhere(estimates == np.max(estimates)).flatten().tolist()
        index = self.random.choice(best) if len(best) > 1 else best[0]
        return list(self.estimates.keys())[index]

    def choose(self) -> int:
        """Return an ε-greedy choice."""
        if self.random.random_sample() < self.agent["epsilon"]:
            arm = int(self.random.choice(list(self.estimates.keys())))
            log.debug(f"explores: arm {arm}")
            return arm
        arm = self.argmax()
        log.debug(f"exploits: arm {arm}")
        return arm

    def pull(self, arm: int) -> float:
        """Return a reward."""
        return float(self.random.normal(self.true_values[arm], self.bandit["noise"]))

    def update(self, arm: int, reward: float) -> None:
        """Update the sample average."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]

    def play(self, num_steps: int) -> tuple[list[float], list[bool]]:
        """Return one run's rewards, and the flags of steps with the best arm."""
        rewards, optimal = [], []
        for step in range(num_steps):
            arm = self.choose()
            reward = self.pull(arm)
            self.update(arm, reward)
            log.debug(f"step {step}: arm {arm}, reward {reward}")
            rewards.append(reward)
            optimal.append(arm == self.best)
        return rewards, optimal


class PlainDictionaries(ConfigurationObjects):
    """Version 2, which converts configuration objects to dictionaries."""

    def convert(self, part: Any) -> Any:
        """Return a part of the configuration as a dictionary."""
        return importlib.import_module("omegaconf").OmegaConf.to_container(part)


class EagerArrays:
    """Version 3, with arrays instead of dictionaries and eagerly formatted messages.

    The array in the message holds the counts. NumPy needs 40 µs to format ten integers. Ten
    estimates would take 100 µs.
    """

    def __init__(self, random: np.random.RandomState) -> None:
        self.random = random
        bandit, agent = SETTINGS["bandit"], SETTINGS["agent"]
        self.epsilon = agent["epsilon"]
        self.noise = bandit["noise"]
        self.num_arms = len(bandit["true_values"])
        self.true_values = self.random.normal(bandit["mean"], bandit["spread"], self.num_arms)
        self.best = np.argmax(self.true_values)
        self.estimates = np.zeros(self.num_arms)
        self.counts = np.zeros(self.num_arms, np.int64)

    def choose(self) -> int:
        """Return an ε-greedy choice. The first of equal arms wins, since arms are exchangeable."""
        if self.random.random_sample() < self.epsilon:
            arm = self.random.choice(self.num_arms)
            log.debug(f"explores: arm {arm}")
            return arm
        arm = np.argmax(self.estimates)
        log.debug(f"exploits: arm {arm}")
        return int(arm)

    def pull(self, arm: int) -> float:
        """Return a reward."""
        return self.random.normal(self.true_values[arm], self.noise)

    def update(self, arm: int, reward: float) -> None:
        """Update the sample average."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]
        log.debug(f"pulls so far {self.counts}")

    def play(self, num_steps: int) -> tuple[Floats, Flags]:
        """Return one run's rewards, and the flags of steps with the best arm."""
        rewards, optimal = np.zeros(num_steps), np.zeros(num_steps, np.bool_)
        for step in range(num_steps):
            arm = self.choose()
            reward = self.pull(arm)
            self.update(arm, reward)
            log.debug(f"step {step}: arm {arm}, reward {reward}")
            rewards[step] = reward
            optimal[step] = arm == self.best
        return rewards, optimal


class LazyMessages(EagerArrays):
    """Version 4, with the same messages, formatted only if they are logged."""

    def choose(self) -> int:
        """Return an ε-greedy choice."""
        if self.random.random_sample() < self.epsilon:
            arm = self.random.choice(self.num_arms)
            log.debug("explores: arm %s", arm)
            return arm
        arm = np.argmax(self.estimates)
        log.debug("exploits: arm %s", arm)
        return int(arm)

    def update(self, arm: int, reward: float) -> None:
        """Update the sample average."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]
        log.debug("pulls so far %s", self.counts)

    def play(self, num_steps: int) -> tuple[Floats, Flags]:
        """Return one run's rewards, and the flags of steps with the best arm."""
        rewards, optimal = np.zeros(num_steps), np.zeros(num_steps, np.bool_)
        for step in range(num_steps):
            arm = self.choose()
            reward = self.pull(arm)
            self.update(arm, reward)
            log.debug("step %s: arm %s, reward %s", step, arm, reward)
            rewards[step] = reward
            optimal[step] = arm == self.best
        return rewards, optimal


VERSIONS: dict[str, tuple[str, type[Any]]] = {
    "configuration_objects": ("the post's first: configuration objects", ConfigurationObjects),
    "plain_dictionaries": ("fix 1: plain dictionaries", PlainDictionaries),
    "eager_arrays": ("fix 2: NumPy's argmax, f-strings of arrays", EagerArrays),
    "lazy_messages": ("fix 3: lazy logging, the post's last", LazyMessages),
}


def play(version: str, num_runs: int, num_steps: int, seed: int) -> Floats:
    """Play runs one after another.

    Returns:
        Each run's mean reward, (num_runs,).
    """
    random = np.random.RandomState(seed)
    program = VERSIONS[version][1]
    return np.array([np.mean(program(random).play(num_steps)[0]) for _ in range(num_runs)])
