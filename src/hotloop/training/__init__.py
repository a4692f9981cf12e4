"""Training: what surrounds an algorithm, the same for hotloop's own and for yours.

An algorithm is a declaration, `OnPolicy` or `OffPolicy`; `train` runs it.
`hotloop.training.options` has the groups of options that a `Config` is made of, without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm, hyper_of
    from hotloop.training.contract import check_algorithm
    from hotloop.training.lanes import train_lanes
    from hotloop.training.off_policy import OffPolicy, Update
    from hotloop.training.on_policy import OnPolicy
    from hotloop.training.replay import Batch
    from hotloop.training.running import Training, train

_MODULES = {
    "Algorithm": "algorithm",
    "Batch": "replay",
    "OffPolicy": "off_policy",
    "OnPolicy": "on_policy",
    "Training": "running",
    "Update": "off_policy",
    "check_algorithm": "contract",
    "hyper_of": "algorithm",
    "train": "running",
    "train_lanes": "lanes",
}

__all__ = [
    "Algorithm",
    "Batch",
    "OffPolicy",
    "OnPolicy",
    "Training",
    "Update",
    "check_algorithm",
    "hyper_of",
    "train",
    "train_lanes",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: options alone cost no import of torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
