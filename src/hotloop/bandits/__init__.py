"""Multi-armed bandits: agents and environments by the million runs, and the book's figures.

Needs NumPy and Numba, and matplotlib for pictures: `pip install 'hotloop[bandit]'`.
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
    Gaussian,
    LinearContextual,
    RandomWalk,
)
from hotloop.bandits.results import Comparison, Estimate, Result, Sums

if TYPE_CHECKING:
    from hotloop.bandits.figures import BookFigure, book_figure
    from hotloop.bandits.jitted import JittedAgent, JittedEnvironment
    from hotloop.bandits.plain import BanditSpeedWarning
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
    "BookFigure",
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
    "book_figure",
    "chunk_sums",
    "compare",
    "run",
]

# What needs Numba is loaded when it is first used: `hotloop bandit --help` must not import it.
_COMPILED = {
    "BookFigure": "figures",
    "book_figure": "figures",
    "BanditSpeedWarning": "plain",
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
