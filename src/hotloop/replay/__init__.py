"""Replay: transitions in, batches out, drawn uniformly or by any weights, at a few microseconds."""

from __future__ import annotations

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
