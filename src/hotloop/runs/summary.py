"""Summaries of runs, read from their directories, damaged or not."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from hotloop import timing
from hotloop.errors import RunDirectoryError
from hotloop.runs.directory import RunDirectory

Status = Literal["finished", "running", "stopped", "killed", "unknown"]

_MAX_DEPTH = 4  # runs/, a sweep, its parts, a run
_STARTED_AT = "%Y-%m-%dT%H:%M:%S%z"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Where a run stands. What is not known, or not there yet, is None.

    Attributes:
        path: its directory.
        env_id: the environment.
        algorithm: the algorithm.
        seed: the run's.
        status: `finished`: it has all its steps; `running`; `stopped`: it ended before that, by
            itself or by a signal; `killed`: it ended without a word; `unknown`: it ran on another
            machine or before a reboot, or left no timing.
        timesteps: transitions collected.
        total_timesteps: how many were asked for.
        mean_return: mean undiscounted return of the last 100 training episodes.
        best_evaluation: the highest mean return of an evaluation.
        num_episodes: training episodes that ended.
        steps_per_s: transitions a second in the training loop.
        started_at: as `config.json` has it, ISO 8601.
    """

    path: Path
    env_id: str
    algorithm: str
    seed: int
    status: Status
    timesteps: int
    total_timesteps: int
    mean_return: float | None
    best_evaluation: float | None
    num_episodes: int
    steps_per_s: float | None
    started_at: str | None

    @property
    def started(self) -> datetime | None:
        """When it was started, with its time zone."""
        try:
            return datetime.strptime(self.started_at or "", _STARTED_AT)
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        """As values that `json.dumps` takes."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def summarise(path: Path) -> RunSummary:
    """Read one run directory.

    Raises:
        RunDirectoryError: it is none, or it is damaged.
    """
    if not (path / "config.json").exists():
        raise RunDirectoryError(f"{path} has no config.json: restore it, or remove the directory")
    run = RunDirectory.open(path)
    return summary_of(run, run.metrics())


def summary_of(run: RunDirectory, lines: Sequence[Mapping[str, Any]]) -> RunSummary:
    """Sum up a run that was read.

    Args:
        run: the run.
        lines: of its metrics.
    """
    content, path = run.config, run.path
    returns = [float(x) for line in lines for x in line["episode_returns"]]
    evaluations = [line["evaluation"]["mean_return"] for line in lines if line.get("evaluation")]
    last = lines[-1] if lines else {"timesteps": 0, "elapsed_s": 0.0}
    timesteps, elapsed_s = last["timesteps"], last.get("elapsed_s") or 0.0
    total_timesteps = content["config"]["total_timesteps"]
    recent = returns[-100:]
    return RunSummary(
        path=path,
        env_id=content["env_id"],
        algorithm=content["algorithm"],
        seed=content["config"]["seed"],
        status="finished" if timesteps >= total_timesteps else _unfinished(path),
        timesteps=timesteps,
        total_timesteps=total_timesteps,
        mean_return=_finite(sum(recent) / len(recent)) if recent else None,
        best_evaluation=max(filter(math.isfinite, evaluations), default=None),
        num_episodes=len(returns),
        steps_per_s=_finite(timesteps / elapsed_s) if elapsed_s > 0 else None,
        started_at=content["started_at"],
    )


def find_runs(directory: Path) -> list[Path]:
    """The run directories in `directory`, four levels deep, or itself where it is one.

    What has a `config.json` or a `metrics.jsonl` is taken for one, whole or not. Hidden directories
    are left out, and so is what can't be read.

    Raises:
        RunDirectoryError: there is no such directory.
    """
    if not directory.is_dir():
        raise RunDirectoryError(
            f"expected a directory of runs, got {directory}, which "
            f"{'is a file' if directory.exists() else 'does not exist'}: name the --runs-dir of a "
            "training"
        )
    found: dict[Path, Path] = {}  # a link to a run is that run, by its shortest path
    for path in sorted(_find(directory, depth=0), key=lambda path: len(path.parts)):
        found.setdefault(path.resolve(), path)
    return sorted(found.values())


def _find(directory: Path, depth: int) -> Iterator[Path]:
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
            yield from _find(directory / name, depth + 1)


def _unfinished(path: Path) -> Status:
    """How a run ended that has not all its steps, by what its learner's last recording says."""
    try:
        recordings, _ = timing.read_directory(path / "timing")
    except (OSError, ValueError):  # no such directory
        return "unknown"
    learners = [recording for recording in recordings if recording.component == "learner"]
    if not learners:
        return "unknown"
    # A resumed run has one of each of its processes.
    last = max(learners, key=lambda recording: recording.start_ns + recording.wall_offset_ns)
    return "stopped" if last.state == "complete" else last.state


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
