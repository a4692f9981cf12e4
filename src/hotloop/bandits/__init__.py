"""Multi-armed bandits: agents and environments by the million runs, and the book's figures.

Needs NumPy and Numba, and matplotlib for pictures: `pip install 'hotloop[bandit]'`.
"""

from __future__ import annotations

from hotloop.bandits.agents import (
    AGENTS,
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    BetaThompson,
    EpsilonGreedy,
    GaussianThompson,
    Gradient,
    LinTS,
    LinUCB,
    Optimistic,
)
from hotloop.bandits.environments import (
    ENVIRONMENTS,
    AbruptChange,
    Adversarial,
    Bernoulli,
    Gaussian,
    LinearContextual,
    RandomWalk,
)
from hotloop.bandits.own import BanditSpeedWarning, JittedAgent, JittedEnvironment
from hotloop.bandits.results import Comparison, Estimate, Result, Sums
from hotloop.bandits.running import chunk_sums, compare, run

__all__ = [
    "AGENTS",
    "ENVIRONMENTS",
    "EXP3",
    "KLUCB",
    "MOSS",
    "UCB",
    "UCB1",
    "AbruptChange",
    "Adversarial",
    "BanditSpeedWarning",
    "Bernoulli",
    "BetaThompson",
    "Comparison",
    "EpsilonGreedy",
    "Estimate",
    "Gaussian",
    "GaussianThompson",
    "Gradient",
    "JittedAgent",
    "JittedEnvironment",
    "LinTS",
    "LinUCB",
    "LinearContextual",
    "Optimistic",
    "RandomWalk",
    "Result",
    "Sums",
    "chunk_sums",
    "compare",
    "run",
]
