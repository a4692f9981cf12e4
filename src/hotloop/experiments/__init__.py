"""Sweeps: search spaces of options, samplers, pruners, a pool of processes, and results."""

from __future__ import annotations

from hotloop.base.space_syntax import Choices, Range
from hotloop.experiments.results import Results, Run, Trial
from hotloop.experiments.spaces import Space

__all__ = ["Choices", "Range", "Results", "Run", "Space", "Trial"]
