"""Contenders of `bench bandit`: the post's versions, NumPy, Numba, the peers, hotloop.

All play the ε-greedy agent with sample averages, ε = 0.1, on the book's testbed: ten arms, true
values ~ N(0, 1) drawn anew for each run, rewards ~ N(true value, 1).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.bandits import post
from bench.bandits.peers import epsilongreedy, mabwiser, pymab, smpybandits
from bench.bandits.plays import ARMS, EPSILON, Moments, Play
from bench.measuring import Missing, imported


def seed_version(version: str) -> Play:
    """One of the seed's."""
    if version in ("configuration_objects", "plain_dictionaries"):
        imported("omegaconf")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        return Moments.of(post.play(version, num_runs, num_steps, seed))

    return play


def numpy_a_run() -> Play:
    """Arrays, one run at a time; what does not depend on the arms is drawn beforehand."""

    def one(num_steps: int, rng: np.random.Generator) -> float:
        true_values = rng.standard_normal(ARMS)
        noise = rng.standard_normal(num_steps)
        explores = rng.random(num_steps) < EPSILON
        others = rng.integers(ARMS, size=num_steps)
        estimates, counts = np.zeros(ARMS), np.zeros(ARMS)
        rewards = np.zeros(num_steps)
        for step in range(num_steps):
            if explores[step]:
                arm = others[step]
            else:
                best = np.flatnonzero(estimates == estimates.max())
                arm = best[0] if len(best) == 1 else best[rng.integers(len(best))]
            rewards[step] = reward = true_values[arm] + noise[step]
            counts[arm] += 1
            estimates[arm] += (reward - estimates[arm]) / counts[arm]
        return float(rewards.mean())

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        return Moments.of([one(num_steps, rng) for _ in range(num_runs)])

    return play


def numpy_over_runs() -> Play:
    """A step of all runs at once."""

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        true_values = rng.standard_normal((num_runs, ARMS))
        estimates, counts = np.zeros((num_runs, ARMS)), np.zeros((num_runs, ARMS))
        totals = np.zeros(num_runs)
        every = np.arange(num_runs)
        for _ in range(num_steps):
            arm = estimates.argmax(axis=1)
            # Ties are drawn only where there are any: after some steps that is almost nowhere.
            is_best = estimates == estimates[every, arm][:, None]
            tied = np.flatnonzero(np.count_nonzero(is_best, axis=1) > 1)
            if len(tied):
                arm[tied] = (is_best[tied] * rng.random((len(tied), ARMS))).argmax(axis=1)
            explores = np.flatnonzero(rng.random(num_runs) < EPSILON)
            arm[explores] = rng.integers(ARMS, size=len(explores))
            reward = true_values[every, arm] + rng.standard_normal(num_runs)
            counts[every, arm] += 1
            estimates[every, arm] += (reward - estimates[every, arm]) / counts[every, arm]
            totals += reward
        return Moments.of(totals / num_steps)

    return play


def _loop(
    rng: Any, means: Any, num_steps: int, num_arms: int, epsilon: float
) -> None:  # compiled below
    true_values, estimates = np.empty(num_arms), np.empty(num_arms)
    counts = np.empty(num_arms)
    for run in range(len(means)):
        for arm in range(num_arms):
            true_values[arm] = rng.standard_normal()
            estimates[arm] = 0.0
            counts[arm] = 0.0
        total = 0.0
        for _ in range(num_steps):
            chosen = 0
            if rng.random() < epsilon:
                chosen = int(rng.random() * num_arms)
            else:
                # Draws among equals in one pass: the n-th of them takes over with chance 1 / n.
                ties = 1
                for arm in range(1, num_arms):
                    if estimates[arm] > estimates[chosen]:
                        chosen, ties = arm, 1
                    elif estimates[arm] == estimates[chosen]:
                        ties += 1
                        if rng.random() * ties < 1.0:
                            chosen = arm
            reward = true_values[chosen] + rng.standard_normal()
            counts[chosen] += 1.0
            estimates[chosen] += (reward - estimates[chosen]) / counts[chosen]
            total += reward
        means[run] = total / num_steps


def numba_loop() -> Play:
    """The plain loop, compiled: what most people would write once NumPy is too slow."""
    loop = imported("numba").njit(_loop)

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        means = np.empty(num_runs)
        loop(np.random.default_rng(seed), means, num_steps, ARMS, EPSILON)
        return Moments.of(means)

    return play


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hotloop_plays(agents: Sequence[Any], environment: Any, threads: int) -> Play:
    """hotloop: one agent by `run`, several by `compare`; the reward is the first one's."""
    bandits = imported("hotloop.bandits")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        sizes = {"num_runs": num_runs, "num_steps": num_steps, "seed": seed, "threads": threads}
        if len(agents) == 1:
            result = bandits.run(agents[0], environment, **sizes)
        else:
            result = bandits.compare(agents, environment, **sizes).results[0]
        return Moments.of_estimate(num_runs, *result.mean_reward)

    return play


def hotloop(threads: int) -> Play:
    """hotloop's kernels at what all contenders play."""
    if threads > cores():
        raise Missing(f"needs {threads} cores")
    bandits = imported("hotloop.bandits")
    agent, environment = bandits.EpsilonGreedy(epsilon=EPSILON), bandits.Gaussian(num_arms=ARMS)
    return hotloop_plays([agent], environment, threads)


class Way(NamedTuple):
    """A contender."""

    about: str
    make: Callable[[], Play]
    runs: int
    """So many a call; where it is less than a grid point's, that is extrapolated."""
    kind: str
    """seed, plain, peer or hotloop."""
    remark: str = ""


WAYS: dict[str, Way] = {
    **{
        name: Way(about, functools.partial(seed_version, name), 1, "seed")
        for name, (about, _) in post.VERSIONS.items()
    },
    "numpy_a_run": Way("NumPy, one run at a time", numpy_a_run, 5, "plain"),
    "numpy_over_runs": Way("NumPy, 2000 runs at once", numpy_over_runs, 2000, "plain"),
    "numba_loop": Way("Numba, one run at a time", numba_loop, 2000, "plain"),
    "epsilongreedy": Way("EpsilonGreedy (pure Python)", epsilongreedy, 10, "peer"),
    "pymab": Way("PyMAB (Rust)", pymab, 20, "peer"),
    "smpybandits": Way(
        "SMPyBandits",
        smpybandits,
        2,
        "peer",
        "exploits the largest sum of rewards instead of the largest mean",
    ),
    "mabwiser": Way("MABWiser", mabwiser, 1, "peer"),
    "hotloop": Way("hotloop, one thread", lambda: hotloop(1), 2000, "hotloop"),
    "hotloop_two": Way("hotloop, two threads", lambda: hotloop(2), 2000, "hotloop"),
}

# Known, and not to be had from the package index.
UNAVAILABLE = {
    "libbandit": "libbandit (C++)",
    "chapter_2": "ShangtongZhang's reinforcement-learning-an-introduction, chapter 2",
}
