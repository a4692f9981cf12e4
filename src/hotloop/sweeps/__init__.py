"""Sweeps: search spaces of options, their results, and the processes that compute them.

Sweeps of trainings have samplers, pruners and a pool of processes. Sweeps of bandits are in
`bandits/`, and need neither torch nor Optuna. Both use one syntax of spaces and one SQLite file.
"""

from __future__ import annotations

from hotloop.sweeps.results import Results, Run, Trial
from hotloop.sweeps.space_syntax import Choices, Range
from hotloop.sweeps.spaces import Space

__all__ = ["Choices", "Range", "Results", "Run", "Space", "Trial"]
