"""A run is a directory: configuration, metrics, timing, checkpoints, plots.

runs/<env>__<algorithm>__<seed>__<time>/
  config.json          what was asked for, and the versions it ran on
  metrics.jsonl        one line an iteration
  timing/              the recording of each process
  checkpoints/last/    tensors.safetensors and state.json
  learning_curve.png
"""

from __future__ import annotations

from hotloop.runs.config import check_fields
from hotloop.runs.directory import RunDirectory
from hotloop.runs.interrupt import delayed_interrupt
from hotloop.runs.report import OnReport, Progress, Report, Result

__all__ = [
    "OnReport",
    "Progress",
    "Report",
    "Result",
    "RunDirectory",
    "check_fields",
    "delayed_interrupt",
]
