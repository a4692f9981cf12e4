"""Other libraries that play ε-greedy on Gaussian arms."""

from __future__ import annotations

import contextlib
import io
import math
import random

import numpy as np

from bench.bandits.plays import ARMS, EPSILON, Moments, Play
from bench.measuring import import_library


def pymab() -> Play:
    """Return PyMAB 2 with its Rust engine, with ten replicates to spread its cost per bandit."""
    library, policies = import_library("pymab"), import_library("pymab.policies")

    def play_bandit(num_runs: int, num_steps: int, rng: np.random.Generator) -> float:
        experiment = library.Experiment(
            environment=library.BanditEnvironment(means=rng.standard_normal(ARMS)),
            policies={"epsilon": policies.EpsilonGreedyPolicy(n_arms=ARMS, epsilon=EPSILON)},
            config=library.ExperimentConfig(
                horizon=num_steps,
                n_replicates=num_runs,
                seed=int(rng.integers(2**31)),
                backend="rust",
            ),
        )
        return float(experiment.run().rewards.mean())

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        sizes = [min(10, num_runs - first) for first in range(0, num_runs, 10)]
        # Replicates share a bandit, so only their mean is an independent run of the testbed.
        return Moments.of([play_bandit(size, num_steps, rng) for size in sizes])

    return play


def mabwiser() -> Play:
    """Return MABWiser, with a prediction and a partial fit per step."""
    library = import_library("mabwiser.mab")

    def play_run(num_steps: int, rng: np.random.Generator) -> float:
        policy = library.LearningPolicy.EpsilonGreedy(epsilon=EPSILON)
        agent = library.MAB(list(range(ARMS)), policy, seed=int(rng.integers(2**31)))
        true_values = rng.standard_normal(ARMS)
        noise = rng.standard_normal(num_steps)
        total = 0.0
        for step in range(num_steps):
            # It cannot predict before the first fit, when all arms are alike.
            arm = agent.predict() if step else 0
            reward = true_values[arm] + noise[step]
            agent.partial_fit([arm], [reward])
            total += reward
        return total / num_steps

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        return Moments.of([play_run(num_steps, rng) for _ in range(num_runs)])

    return play


def smpybandits() -> Play:
    """Return SMPyBandits, with `choice`, `draw` and `getReward` per step as in its evaluator."""
    special = import_library("scipy.special")
    # SMPyBandits imports this name, which SciPy has removed. ε-greedy does not call it.
    if not hasattr(special, "btdtri"):
        special.btdtri = special.betaincinv
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(divide="ignore"):
        policies, arms = import_library("SMPyBandits.Policies"), import_library("SMPyBandits.Arms")

    def play_run(num_steps: int) -> float:
        bandit = [
            arms.Gaussian(random.gauss(0.0, 1.0), sigma=1.0, mini=-math.inf, maxi=math.inf)
            for _ in range(ARMS)
        ]
        agent = policies.EpsilonGreedy(ARMS, epsilon=EPSILON)
        agent.startGame()
        total = 0.0
        for step in range(num_steps):
            arm = agent.choice()
            reward = bandit[arm].draw(step)
            agent.getReward(arm, reward)
            total += reward
        return total / num_steps

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (it draws from both)
        return Moments.of([play_run(num_steps) for _ in range(num_runs)])

    return play


def epsilongreedy() -> Play:
    """Return the package EpsilonGreedy, pure Python with its own loop."""
    library = import_library("EpsilonGreedy")

    def play_run(num_steps: int, rng: random.Random) -> float:
        arms = [
            library.Arm(name=str(arm), distribution="normal", mu=rng.gauss(0.0, 1.0))
            for arm in range(ARMS)
        ]
        bandit = library.MultiArmedBandit(arms, seed=rng.randrange(2**31))
        agent = library.EpsilonGreedyAgent(ARMS, epsilon=EPSILON, seed=rng.randrange(2**31))
        return library.run_bandit(bandit, agent, num_steps)["avg_reward"]

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = random.Random(seed)
        return Moments.of([play_run(num_steps, rng) for _ in range(num_runs)])

    return play
