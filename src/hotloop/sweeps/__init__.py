"""Sweeps over trainings: spaces, samplers, pruners, a pool of processes, one file of results."""

from __future__ import annotations

from hotloop.sweeps.results import Results, Run, Trial
from hotloop.sweeps.spaces import Choices, Range, Space

__all__ = ["Choices", "Range", "Results", "Run", "Space", "Trial"]
