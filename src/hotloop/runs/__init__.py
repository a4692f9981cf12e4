"""Run directories: configuration, metrics, timing, checkpoints and plots.

runs/<env>__<algorithm>__<seed>__<time>/
  config.json          configuration, and versions of the libraries
  metrics.jsonl        one line per iteration
  timing/              one recording per process
  checkpoints/         last, best and some others, see `hotloop.runs.checkpoints`
  videos/              evaluation videos (optional)
  tensorboard/         TensorBoard files (optional)
  learning_curve.png
"""

from __future__ import annotations

from hotloop.runs.checkpoints import REPLAY_FILE, Checkpoint, Checkpoints
from hotloop.runs.directory import RunDirectory
from hotloop.runs.progress import (
    ON_REPORT,
    Evaluation,
    OnReport,
    ProgressState,
    Report,
    RunProgress,
    RunResult,
)

__all__ = [
    "ON_REPORT",
    "REPLAY_FILE",
    "Checkpoint",
    "Checkpoints",
    "Evaluation",
    "OnReport",
    "ProgressState",
    "Report",
    "RunDirectory",
    "RunProgress",
    "RunResult",
]
