"""Sweeps: spaces of options, what came of their points, and who computes them.

Of trainings, with samplers, pruners and a pool of processes; of bandits in `bandits/`, which needs
neither torch nor Optuna. Both read spaces in one grammar, and keep results in one SQLite file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hotloop.sweeps.grammar import Choices, Range
from hotloop.sweeps.results import Results, Run, Trial
from hotloop.sweeps.spaces import Space

if TYPE_CHECKING:
    from hotloop.sweeps.bandits import Grid, GridTable

__all__ = ["Choices", "Grid", "GridTable", "Range", "Results", "Run", "Space", "Trial"]


def __getattr__(name: str) -> object:
    if name in ("Grid", "GridTable"):  # they load Numba
        return getattr(importlib.import_module("hotloop.sweeps.bandits"), name)
    raise AttributeError(f"module 'hotloop.sweeps' has no attribute '{name}'")
