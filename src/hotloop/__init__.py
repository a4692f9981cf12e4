"""hotloop: reinforcement learning with a fast training loop, and a profiler for slow loops.

Public names are loaded on first use, so that `import hotloop` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hotloop.base.version import __version__

if TYPE_CHECKING:
    from hotloop.algorithms import train
    from hotloop.envs import EnvSpec, make_vec
    from hotloop.experiments import sweep, train_many
    from hotloop.ops import gae
    from hotloop.timing import Timing, span
    from hotloop.training.trained_policy import evaluate, load

__all__ = [
    "EnvSpec",
    "Timing",
    "__version__",
    "evaluate",
    "gae",
    "load",
    "make_vec",
    "span",
    "sweep",
    "train",
    "train_many",
]

_PUBLIC = {
    "EnvSpec": "hotloop.envs",
    "Timing": "hotloop.timing",
    "evaluate": "hotloop.training.trained_policy",
    "gae": "hotloop.ops",
    "load": "hotloop.training.trained_policy",
    "make_vec": "hotloop.envs",
    "span": "hotloop.timing",
    "sweep": "hotloop.experiments",
    "train": "hotloop.algorithms",
    "train_many": "hotloop.experiments",
}


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'hotloop' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
