"""The options of a run: option groups, and the constraints of each option.

    from hotloop.training.options import Count, Options, RunOptions, ScheduledPositive

This package imports neither torch nor Gymnasium.
"""

from __future__ import annotations

from hotloop.training.options.base import SET, Options, RequirementTable, with_values
from hotloop.training.options.constraints import (
    FRACTION,
    MAY_CHANGE,
    POSITIVE,
    Constraint,
    Count,
    Device,
    Environment,
    Factory,
    Finite,
    Fraction,
    Hint,
    Importable,
    Natural,
    NotNegative,
    Positive,
    Scheduled,
    ScheduledFinite,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
    Sizes,
    Trackers,
    between,
    changeable_options,
)
from hotloop.training.options.evaluation import EvalOptions
from hotloop.training.options.groups import (
    AlgorithmOptions,
    AnyConfig,
    MaskOptions,
    NetworkOptions,
    OnPolicyOptions,
    ReplayOptions,
    RunOptions,
    SaveOptions,
)
from hotloop.training.options.self_play import SelfPlayOptions
from hotloop.training.options.sequences import (
    MemoryOptions,
    ReplaySequenceOptions,
    SequenceOptions,
)
from hotloop.training.options.serialization import (
    changed_fields,
    differing_defaults,
    from_stored,
    to_json,
    untrusted_options,
)
from hotloop.training.options.stopping import StopOptions
from hotloop.training.options.task import TaskOptions
from hotloop.training.options.workers import WorkerOptions

__all__ = [
    "FRACTION",
    "MAY_CHANGE",
    "POSITIVE",
    "SET",
    "AlgorithmOptions",
    "AnyConfig",
    "Constraint",
    "Count",
    "Device",
    "Environment",
    "EvalOptions",
    "Factory",
    "Finite",
    "Fraction",
    "Hint",
    "Importable",
    "MaskOptions",
    "MemoryOptions",
    "Natural",
    "NetworkOptions",
    "NotNegative",
    "OnPolicyOptions",
    "Options",
    "Positive",
    "ReplayOptions",
    "ReplaySequenceOptions",
    "RequirementTable",
    "RunOptions",
    "SaveOptions",
    "Scheduled",
    "ScheduledFinite",
    "ScheduledFraction",
    "ScheduledNotNegative",
    "ScheduledPositive",
    "SelfPlayOptions",
    "SequenceOptions",
    "Sizes",
    "StopOptions",
    "TaskOptions",
    "Trackers",
    "WorkerOptions",
    "between",
    "changeable_options",
    "changed_fields",
    "differing_defaults",
    "from_stored",
    "to_json",
    "untrusted_options",
    "with_values",
]
