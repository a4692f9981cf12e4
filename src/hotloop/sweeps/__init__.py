"""Sweeps: search spaces of options, samplers, pruners, a pool of processes, and results."""

from __future__ import annotations

from hotloop.base.space_syntax import Choices, Range
from hotloop.sweeps.results import Results, Run, Trial
from hotloop.sweeps.spaces import Space

__all__ = ["Choices", "Range", "Results", "Run", "Space", "Trial"]
