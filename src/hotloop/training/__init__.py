"""The training loop, shared by hotloop's algorithms and by your own.

An algorithm is a declaration, `OnPolicy` or `OffPolicy`. Its method `train` runs it.
`hotloop.training.options` has the option groups that make up a `Config`. It does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm
    from hotloop.training.algorithm_check import check_algorithm
    from hotloop.training.callbacks import (
        Callback,
        StopAfterHours,
        StopAtReturn,
        StopOnFile,
        StopWithoutImprovement,
    )
    from hotloop.training.lanes import train_lanes
    from hotloop.training.learners import hyper_of
    from hotloop.training.off_policy import OffPolicy
    from hotloop.training.on_policy import OnPolicy
    from hotloop.training.replay import Replay, ReplayBatch, ReplaySource
    from hotloop.training.several_policies import train_policies
    from hotloop.training.training_envs import TrainingEnvs
    from hotloop.training.update_declaration import Update

_MODULES = {
    "Algorithm": "algorithm",
    "Callback": "callbacks",
    "Replay": "replay",
    "ReplayBatch": "replay",
    "ReplaySource": "replay",
    "OffPolicy": "off_policy",
    "OnPolicy": "on_policy",
    "StopAfterHours": "callbacks",
    "StopAtReturn": "callbacks",
    "StopOnFile": "callbacks",
    "StopWithoutImprovement": "callbacks",
    "TrainingEnvs": "training_envs",
    "Update": "update_declaration",
    "check_algorithm": "algorithm_check",
    "hyper_of": "learners",
    "train_lanes": "lanes",
    "train_policies": "several_policies",
}

__all__ = [
    "Algorithm",
    "Callback",
    "OffPolicy",
    "OnPolicy",
    "Replay",
    "ReplayBatch",
    "ReplaySource",
    "StopAfterHours",
    "StopAtReturn",
    "StopOnFile",
    "StopWithoutImprovement",
    "TrainingEnvs",
    "Update",
    "check_algorithm",
    "hyper_of",
    "train_lanes",
    "train_policies",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing the options does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
