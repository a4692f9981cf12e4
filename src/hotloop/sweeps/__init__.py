"""Sweeps: spaces of options, what came of their points, and who computes them.

Of trainings, with samplers, pruners and a pool of processes; of bandits in `bandits/`, which needs
neither torch nor Optuna. Both read spaces in one grammar, and keep results in one SQLite file.
"""

from __future__ import annotations

from hotloop.sweeps.grammar import Choices, Range
from hotloop.sweeps.results import Results, Run, Trial
from hotloop.sweeps.spaces import Space

__all__ = ["Choices", "Range", "Results", "Run", "Space", "Trial"]
