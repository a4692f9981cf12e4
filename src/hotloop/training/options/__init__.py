"""Options of a run: groups of them, and the constraints beside each.

    from hotloop.training.options import Count, Options, RunOptions, ScheduledPositive

Neither torch nor Gymnasium is imported here.
"""

from __future__ import annotations

from hotloop.training.options.base import Options
from hotloop.training.options.constraints import (
    FINITE,
    FRACTION,
    INTEGER,
    MAY_CHANGE,
    NOT_NEGATIVE,
    POSITIVE,
    Constraint,
    Count,
    Device,
    Factory,
    Finite,
    Fraction,
    Hint,
    Importable,
    JsonObject,
    Mark,
    Natural,
    NotNegative,
    Positive,
    Scheduled,
    ScheduledFinite,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
    Seed,
    Sizes,
    Trackers,
    may_change,
)
from hotloop.training.options.groups import (
    EvalOptions,
    NetworkOptions,
    OnPolicyOptions,
    ReplayOptions,
    RunOptions,
    SaveOptions,
    TaskOptions,
)
from hotloop.training.options.sequences import (
    MemoryOptions,
    ReplaySequenceOptions,
    SequenceOptions,
)
from hotloop.training.options.stored import changed_fields, differing_defaults, from_stored, to_json
from hotloop.training.options.workers import WorkerOptions

__all__ = [
    "FINITE",
    "FRACTION",
    "INTEGER",
    "MAY_CHANGE",
    "NOT_NEGATIVE",
    "POSITIVE",
    "Constraint",
    "Count",
    "Device",
    "EvalOptions",
    "Factory",
    "Finite",
    "Fraction",
    "Hint",
    "Importable",
    "JsonObject",
    "Mark",
    "MemoryOptions",
    "Natural",
    "NetworkOptions",
    "NotNegative",
    "OnPolicyOptions",
    "Options",
    "Positive",
    "ReplayOptions",
    "ReplaySequenceOptions",
    "RunOptions",
    "SaveOptions",
    "Scheduled",
    "ScheduledFinite",
    "ScheduledFraction",
    "ScheduledNotNegative",
    "ScheduledPositive",
    "Seed",
    "SequenceOptions",
    "Sizes",
    "TaskOptions",
    "Trackers",
    "WorkerOptions",
    "changed_fields",
    "differing_defaults",
    "from_stored",
    "may_change",
    "to_json",
]
