"""Multi-armed bandits: agents, environments, millions of runs, and the figures of Sutton & Barto.

The package needs NumPy and Numba, and matplotlib for plots: `pip install 'hotloop[bandit]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    GaussianRewards,
    LinearContextual,
    RandomWalk,
)
from hotloop.bandits.results import BanditComparison, BanditResult, MeanEstimate, RunSums

if TYPE_CHECKING:
    from hotloop.bandits.figures import BookFigure, book_figure
    from hotloop.bandits.jitted import JittedAgent, JittedEnvironment
    from hotloop.bandits.python_adapters import BanditSpeedWarning
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
    "BanditComparison",
    "BanditResult",
    "BanditSpeedWarning",
    "Bernoulli",
    "BetaThompson",
    "BookFigure",
    "EpsilonGreedy",
    "GaussianRewards",
    "GaussianThompson",
    "Gradient",
    "JittedAgent",
    "JittedEnvironment",
    "LinTS",
    "LinUCB",
    "LinearContextual",
    "MeanEstimate",
    "Optimistic",
    "RandomWalk",
    "RunSums",
    "book_figure",
    "chunk_sums",
    "compare",
    "run",
]

# Loaded on first use, because `hotloop bandit --help` must not import Numba.
_COMPILED = {
    "BookFigure": "figures",
    "book_figure": "figures",
    "BanditSpeedWarning": "python_adapters",
    "JittedAgent": "jitted",
    "JittedEnvironment": "jitted",
    "chunk_sums": "running",
    "compare": "running",
    "run": "running",
}


def __getattr__(name: str) -> object:
    if name in _COMPILED:
        return getattr(importlib.import_module(f"hotloop.bandits.{_COMPILED[name]}"), name)
    raise AttributeError(f"module 'hotloop.bandits' has no attribute '{name}'")
