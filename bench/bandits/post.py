"""The program of a post, and its author's fixes one after another.

The post is "Speeding up a multiarmed bandit by 30x". It prints `argmax` and describes the rest;
from that the program is rebuilt here: the ε-greedy agent of Sutton and Barto's chapter 2 with
sample averages on ten arms, true values ~ N(0, 1), rewards ~ N(true value, 1); it keeps what both
panels of the book's figure 2.2 are drawn from. All four versions are right; what differs is what
surrounds the arithmetic:

1. `ConfigurationObjects`: what Hydra hands out are omegaconf objects; the hot loop uses them.
2. `PlainDictionaries`: the same, but for the line that makes dictionaries of them.
3. `EagerArrays`: NumPy arrays and its argmax, and debug messages with an array in an f-string.
4. `LazyMessages`: the logging library fills in the message, if anybody wants it. The author's last.
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

# What the author tells, of a desktop of unknown make. The figures of the two fixes are of a whole
# program of unknown size on eight processes: their ratios are what they say.
PUBLISHED = {
    "configuration_objects": "250 ms a run of 1000 steps, some 10 minutes a grid point",
    "plain_dictionaries": "from over 100 s to below 10",
    "eager_arrays": "3 times slower",
    "lazy_messages": "30 times as fast as the first",
}


@functools.cache
def configuration() -> Any:
    """The settings as a program with Hydra gets them."""
    return importlib.import_module("omegaconf").OmegaConf.create(SETTINGS)


class ConfigurationObjects:
    """Version 1: what holds the values is what the configuration file became."""

    def __init__(self, random: np.random.RandomState) -> None:
        self.random = random
        self.settings = configuration()
        self.bandit = self.taken(self.settings.bandit.copy())
        self.agent = self.taken(self.settings.agent.copy())
        self.true_values = self.bandit["true_values"]
        for arm in list(self.true_values.keys()):
            drawn = self.random.normal(self.bandit["mean"], self.bandit["spread"])
            self.true_values[arm] = float(drawn)
        self.best = max(self.true_values.keys(), key=lambda arm: self.true_values[arm])
        self.estimates = self.agent["estimates"]
        self.counts = self.agent["counts"]

    def taken(self, part: Any) -> Any:
        """A part of the configuration, as it came."""
        return part

    def argmax(self) -> int:
        """The arm with the largest estimate, drawn among equals; the post prints this one."""
        estimates = np.array(list(self.estimates.values()))
        best = np.argwhere(estimates == np.max(estimates)).flatten().tolist()
        at = self.random.choice(best) if len(best) > 1 else best[0]
        return list(self.estimates.keys())[at]

    def choose(self) -> int:
        """ε-greedy."""
        if self.random.random_sample() < self.agent["epsilon"]:
            arm = int(self.random.choice(list(self.estimates.keys())))
            log.debug(f"explores: arm {arm}")
            return arm
        arm = self.argmax()
        log.debug(f"exploits: arm {arm}")
        return arm

    def pull(self, arm: int) -> float:
        """A reward."""
        return float(self.random.normal(self.true_values[arm], self.bandit["noise"]))

    def update(self, arm: int, reward: float) -> None:
        """Sample averages."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]

    def play(self, num_steps: int) -> tuple[list[float], list[bool]]:
        """One run's rewards, and which steps took the best arm."""
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
    """Version 2."""

    def taken(self, part: Any) -> Any:
        """A part of the configuration, as a dictionary."""
        return importlib.import_module("omegaconf").OmegaConf.to_container(part)


class EagerArrays:
    """Version 3: arrays instead of dictionaries, and messages that are written for nobody.

    The array in the message is that of the counts. Ten integers take NumPy 40 µs to write; the ten
    estimates would take 100.
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
        """ε-greedy. Of equals the first, which changes no law here: no arm differs beforehand."""
        if self.random.random_sample() < self.epsilon:
            arm = self.random.choice(self.num_arms)
            log.debug(f"explores: arm {arm}")
            return arm
        arm = np.argmax(self.estimates)
        log.debug(f"exploits: arm {arm}")
        return int(arm)

    def pull(self, arm: int) -> float:
        """A reward."""
        return self.random.normal(self.true_values[arm], self.noise)

    def update(self, arm: int, reward: float) -> None:
        """Sample averages."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]
        log.debug(f"pulls so far {self.counts}")

    def play(self, num_steps: int) -> tuple[Floats, Flags]:
        """One run's rewards, and which steps took the best arm."""
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
    """Version 4: what is written is the same, once somebody listens."""

    def choose(self) -> int:
        """ε-greedy."""
        if self.random.random_sample() < self.epsilon:
            arm = self.random.choice(self.num_arms)
            log.debug("explores: arm %s", arm)
            return arm
        arm = np.argmax(self.estimates)
        log.debug("exploits: arm %s", arm)
        return int(arm)

    def update(self, arm: int, reward: float) -> None:
        """Sample averages."""
        self.counts[arm] += 1
        self.estimates[arm] += (reward - self.estimates[arm]) / self.counts[arm]
        log.debug("pulls so far %s", self.counts)

    def play(self, num_steps: int) -> tuple[Floats, Flags]:
        """One run's rewards, and which steps took the best arm."""
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
    """Runs one after another.

    Returns:
        Each run's mean reward, (num_runs,).
    """
    random = np.random.RandomState(seed)
    program = VERSIONS[version][1]
    return np.array([np.mean(program(random).play(num_steps)[0]) for _ in range(num_runs)])
