"""Summaries of runs, read from their directories."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from hotloop import timing
from hotloop.errors import RunDirectoryError
from hotloop.runs import trust
from hotloop.runs.directory import RunDirectory
from hotloop.runs.run_status import last_learner, read_status

Status = Literal["finished", "running", "stopped", "killed", "unknown"]

_MAX_DEPTH = 4  # levels: runs/, a sweep, its subdirectories, a run
_STARTED_AT = "%Y-%m-%dT%H:%M:%S%z"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The state and the main metrics of a run. Unknown or missing values are None.

    Attributes:
        path, env_id, algorithm, seed: the run directory and its configuration.
        status: `finished`: the run has all its steps. `running`: it is in progress. `stopped`: it
            ended early, by itself or by a signal. `killed`: it ended without closing its files.
            `unknown`: it ran on another machine or before a reboot, or has no timing.
        timesteps: transitions collected.
        total_timesteps: transitions of the complete run.
        mean_return: mean undiscounted return of the last 100 training episodes.
        std_return: standard deviation of these returns.
        best_evaluation: highest mean return of an evaluation.
        best_evaluation_std: standard deviation of its returns.
        num_episodes: number of finished training episodes.
        steps_per_s: transitions per second in the training loop.
        started_at: start time in `config.json`, ISO 8601.
        stop_reason: why its last process stopped or failed.
    """

    path: Path
    env_id: str
    algorithm: str
    seed: int
    status: Status
    timesteps: int
    total_timesteps: int
    mean_return: float | None
    std_return: float | None
    best_evaluation: float | None
    best_evaluation_std: float | None
    num_episodes: int
    steps_per_s: float | None
    started_at: str | None
    stop_reason: str | None = None

    @property
    def start_time(self) -> datetime | None:
        """The start time, with its time zone."""
        try:
            return datetime.strptime(self.started_at or "", _STARTED_AT)
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dumps`."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def summarize(path: Path) -> RunSummary:
    """Return the summary of a run directory.

    Raises:
        RunDirectoryError: the path is not a run directory, or the run is damaged.
        UntrustedError: `config.json` was changed after this user's training had signed it.
    """
    if not (path / "config.json").exists():
        raise RunDirectoryError(f"{path} has no config.json: restore it, or remove the directory")
    run = RunDirectory.open(path)
    trust.check_unchanged(path, run.config)
    return summarize_run(run, run.metrics())


def summarize_run(run: RunDirectory, lines: Sequence[Mapping[str, Any]]) -> RunSummary:
    """Return the summary of an open run."""
    content, path = run.config, run.path
    returns = [float(x) for line in lines for x in line["episode_returns"]]
    evaluations = [line["evaluation"] for line in lines if line.get("evaluation")]
    evaluations = [x for x in evaluations if math.isfinite(x["mean_return"])]
    best = max(evaluations, key=lambda x: x["mean_return"], default={})
    last = lines[-1] if lines else {"timesteps": 0, "elapsed_s": 0.0}
    timesteps, elapsed_s = last["timesteps"], last.get("elapsed_s") or 0.0
    total_timesteps = content["config"]["total_timesteps"]
    recent, status = returns[-100:], read_status(path)
    mean = _finite(sum(recent) / len(recent)) if recent else None
    return RunSummary(
        path=path,
        env_id=content["env_id"],
        algorithm=content["algorithm"],
        seed=content["config"]["seed"],
        status="finished" if timesteps >= total_timesteps else _unfinished_status(path),
        timesteps=timesteps,
        total_timesteps=total_timesteps,
        mean_return=mean,
        std_return=statistics.pstdev(recent) if mean is not None else None,
        best_evaluation=best.get("mean_return"),
        best_evaluation_std=best.get("std_return"),
        num_episodes=len(returns),
        steps_per_s=_finite(timesteps / elapsed_s) if elapsed_s > 0 else None,
        started_at=content["started_at"],
        stop_reason=(status.reason or None) if status is not None else None,
    )


def find_runs(directory: Path) -> list[Path]:
    """Return the run directories in `directory`, up to four levels deep, or `directory` itself.

    A run directory contains a `config.json` or a `metrics.jsonl`, perhaps damaged. The search skips
    hidden and unreadable directories.

    Raises:
        RunDirectoryError: the directory does not exist.
    """
    if not directory.is_dir():
        raise RunDirectoryError(
            f"expected a directory of runs, got {directory}, which "
            f"{'is a file' if directory.exists() else 'does not exist'}: pass the --runs-dir of a "
            "training"
        )
    runs: dict[Path, Path] = {}  # shortest path of each run, without links to it
    for path in sorted(_iter_runs(directory, depth=0), key=lambda path: len(path.parts)):
        runs.setdefault(path.resolve(), path)
    return sorted(runs.values())


def _iter_runs(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        if any(entry.name in ("config.json", "metrics.jsonl") for entry in entries):
            yield directory
            return
        folders = [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()]
    except OSError:
        return
    if depth < _MAX_DEPTH:
        for name in folders:
            yield from _iter_runs(directory / name, depth + 1)


def _unfinished_status(path: Path) -> Status:
    """Return the status of an incomplete run, from the last recording of its learner."""
    try:
        recordings, _ = timing.read_directory(path / "timing")
    except (OSError, ValueError):  # the directory does not exist
        return "unknown"
    last = last_learner(recordings)
    if last is None:
        return "unknown"
    return "stopped" if last.state == "complete" else last.state


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
