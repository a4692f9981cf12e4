"""A run is a directory: configuration, metrics, timing, checkpoints, plots.

runs/<env>__<algorithm>__<seed>__<time>/
  config.json          what was asked for, and the versions it ran on
  metrics.jsonl        one line an iteration
  timing/              the recording of each process
  checkpoints/         last, best and some between, see `hotloop.runs.checkpoints`
  videos/              of evaluations, if asked for
  tensorboard/         if asked for
  learning_curve.png
"""

from __future__ import annotations

from hotloop.runs.checkpoints import REPLAY_FILE, Checkpoint, Checkpoints
from hotloop.runs.directory import RunDirectory
from hotloop.runs.report import (
    Evaluation,
    OnReport,
    Progress,
    ProgressPosition,
    Report,
    Result,
)

__all__ = [
    "REPLAY_FILE",
    "Checkpoint",
    "Checkpoints",
    "Evaluation",
    "OnReport",
    "Progress",
    "ProgressPosition",
    "Report",
    "Result",
    "RunDirectory",
]
