"""Contenders of `bench bandit`: the post's versions, NumPy, Numba, other libraries, hotloop.

All play the ε-greedy agent with sample averages, ε = 0.1, on the book's testbed: ten arms, new true
values ~ N(0, 1) for each run, rewards ~ N(true value, 1).
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
from bench.measuring import Missing, import_library


def post_version(version: str) -> Play:
    """Return a version of the post's program."""
    if version in ("configuration_objects", "plain_dictionaries"):
        import_library("omegaconf")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        return Moments.of(post.play(version, num_runs, num_steps, seed))

    return play


def numpy_per_run() -> Play:
    """Return a NumPy program for one run at a time that draws noise and explorations in advance."""

    def play_run(num_steps: int, rng: np.random.Generator) -> float:
        true_values = rng.standard_normal(ARMS)
        noise = rng.standard_normal(num_steps)
        explores = rng.random(num_steps) < EPSILON
        random_arms = rng.integers(ARMS, size=num_steps)
        estimates, counts = np.zeros(ARMS), np.zeros(ARMS)
        rewards = np.zeros(num_steps)
        for step in range(num_steps):
            if explores[step]:
                arm = random_arms[step]
            else:
                best = np.flatnonzero(estimates == estimates.max())
                arm = best[0] if len(best) == 1 else best[rng.integers(len(best))]
            rewards[step] = reward = true_values[arm] + noise[step]
            counts[arm] += 1
            estimates[arm] += (reward - estimates[arm]) / counts[arm]
        return float(rewards.mean())

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        return Moments.of([play_run(num_steps, rng) for _ in range(num_runs)])

    return play


def numpy_over_runs() -> Play:
    """Return a NumPy program that steps all runs at once."""

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        true_values = rng.standard_normal((num_runs, ARMS))
        estimates, counts = np.zeros((num_runs, ARMS)), np.zeros((num_runs, ARMS))
        totals = np.zeros(num_runs)
        every = np.arange(num_runs)
        for _ in range(num_steps):
            arm = estimates.argmax(axis=1)
            # Ties are broken only in runs that have any, which become rare after some steps.
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
                # Break ties in one pass: the n-th equal arm replaces the choice with chance 1 / n.
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
    """Return the plain loop, compiled by Numba."""
    loop = import_library("numba").njit(_loop)

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        means = np.empty(num_runs)
        loop(np.random.default_rng(seed), means, num_steps, ARMS, EPSILON)
        return Moments.of(means)

    return play


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hotloop_plays(agents: Sequence[Any], environment: Any, threads: int) -> Play:
    """Return a program that plays one agent by `run` or several by `compare`.

    The reward is that of the first agent.
    """
    bandits = import_library("hotloop.bandits")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        sizes = {"num_runs": num_runs, "num_steps": num_steps, "seed": seed, "threads": threads}
        if len(agents) == 1:
            result = bandits.run(agents[0], environment, **sizes)
        else:
            result = bandits.compare(agents, environment, **sizes).results[0]
        return Moments.of_estimate(num_runs, *result.mean_reward)

    return play


def hotloop(threads: int) -> Play:
    """Return hotloop's kernels for the common task."""
    if threads > cores():
        raise Missing(f"needs {threads} cores")
    bandits = import_library("hotloop.bandits")
    agent, environment = (
        bandits.EpsilonGreedy(epsilon=EPSILON),
        bandits.GaussianRewards(num_arms=ARMS),
    )
    return hotloop_plays([agent], environment, threads)


class BanditContender(NamedTuple):
    """A contender of `bench bandit`."""

    label: str
    make: Callable[[], Play]
    runs: int
    """Runs per call. With fewer than a grid point has, the grid point is extrapolated."""
    kind: str
    """`seed` (the post's), `plain`, `peer` or `hotloop`."""
    remark: str = ""


WAYS: dict[str, BanditContender] = {
    **{
        name: BanditContender(label, functools.partial(post_version, name), 1, "seed")
        for name, (label, _) in post.VERSIONS.items()
    },
    "numpy_a_run": BanditContender("NumPy, one run at a time", numpy_per_run, 5, "plain"),
    "numpy_over_runs": BanditContender("NumPy, 2000 runs at once", numpy_over_runs, 2000, "plain"),
    "numba_loop": BanditContender("Numba, one run at a time", numba_loop, 2000, "plain"),
    "epsilongreedy": BanditContender("EpsilonGreedy (pure Python)", epsilongreedy, 10, "peer"),
    "pymab": BanditContender("PyMAB (Rust)", pymab, 20, "peer"),
    "smpybandits": BanditContender(
        "SMPyBandits",
        smpybandits,
        2,
        "peer",
        "exploits the largest sum of rewards instead of the largest mean",
    ),
    "mabwiser": BanditContender("MABWiser", mabwiser, 1, "peer"),
    "hotloop": BanditContender("hotloop, one thread", lambda: hotloop(1), 2000, "hotloop"),
    "hotloop_two": BanditContender("hotloop, two threads", lambda: hotloop(2), 2000, "hotloop"),
}

# Programs that are not on the package index.
UNAVAILABLE = {
    "libbandit": "libbandit (C++)",
    "chapter_2": "ShangtongZhang's reinforcement-learning-an-introduction, chapter 2",
}
