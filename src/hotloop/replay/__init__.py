"""Replay buffers with uniform, proportional and prioritized sampling in a few microseconds.

Public names are imported on first use, since they need Numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.replay.batch import Batch
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.samplers import (
        Prioritized,
        Proportional,
        RankBased,
        Sampler,
        Sequences,
        Uniform,
    )

_MODULES = {
    "Batch": "batch",
    "Prioritized": "samplers",
    "Proportional": "samplers",
    "RankBased": "samplers",
    "ReplayBuffer": "buffer",
    "Sampler": "samplers",
    "Sequences": "samplers",
    "Uniform": "samplers",
}

__all__ = [
    "Batch",
    "Prioritized",
    "Proportional",
    "RankBased",
    "ReplayBuffer",
    "Sampler",
    "Sequences",
    "Uniform",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
