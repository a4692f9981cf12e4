"""Many trainings: plans over seeds and search spaces, their execution, and tables of results."""

from __future__ import annotations

from hotloop.base.space_syntax import Choices, Range
from hotloop.experiments.launch import sweep, train_many
from hotloop.experiments.plan import Plan
from hotloop.experiments.results import Results, Run, Trial
from hotloop.experiments.spaces import Space
from hotloop.experiments.tables import ExperimentTable, read_table

__all__ = [
    "Choices",
    "ExperimentTable",
    "Plan",
    "Range",
    "Results",
    "Run",
    "Space",
    "Trial",
    "read_table",
    "sweep",
    "train_many",
]
