"""A training as Ray Tune runs it: reports, and in a population a checkpoint at each generation."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cache import SHARED
from hotloop.ops.schedules import as_schedule, steps
from hotloop.sweeps.worker import Scored, reason_of, unpacked

if TYPE_CHECKING:
    from hotloop.runs import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What is the same for all trials of a sweep on Ray.

    Attributes:
        algorithm: by its name on the command line.
        metric: see `worker.METRICS`.
        runs: that share a compiled update.
        directory: of the runs.
        sys_path: where the sweep's own process imports from.
        config: of a population, packed; None: each trial brings its own.
        generations: of a population.
    """

    algorithm: str
    metric: str
    runs: int
    directory: str
    sys_path: list[str]
    config: str | None = None
    generations: int = 1


def train_trial(given: Mapping[str, Any], work: Work) -> None:
    """Train a trial, and tell Ray Tune of it.

    Args:
        given: of a population the options as they are from here on; else `config`, packed.
        work: what is the same for all.
    """
    from ray import tune

    SHARED.runs = work.runs
    sys.path[:] = [*sys.path, *(path for path in work.sys_path if path not in sys.path)]
    trial = _Trial(given, work, Path(work.directory) / tune.get_context().get_trial_name())
    try:
        state, score, reason, seconds = trial.train()
    except Exception as error:  # of the trial: the next one may do better
        state, score, reason, seconds = "failed", None, reason_of(error), None
    tune.report(
        {
            "timesteps": trial.timesteps,
            "generation": trial.generation,
            "score": math.nan if score is None else score,
            "ended": [state, score, reason, seconds],
            "became": trial.schedules,
        }
    )


class _Trial:
    """A training, or a part of one that goes on from a checkpoint.

    Attributes:
        timesteps: so far.
        generation: how many have ended.
        schedules: of a population, what each option has been so far, as text.
    """

    def __init__(self, given: Mapping[str, Any], work: Work, run_dir: Path) -> None:
        from hotloop.algorithms import find

        self._given, self._work, self._run_dir = given, work, run_dir
        self._algorithm = find(work.algorithm)
        self._scored = Scored(work.metric)
        self.timesteps = self.generation = 0
        self.schedules: dict[str, str] = {}

    def train(self) -> list[Any]:
        """Train to the end; return state, score, reason and seconds."""
        shutil.rmtree(self._run_dir, ignore_errors=True)  # of a part, or of a process that died
        is_population = self._work.config is not None
        config, resume_from = self._population() if is_population else (self._own(), None)
        result = self._algorithm.train(
            config,
            on_report=self._on_generation if is_population else self._on_report,
            resume_from=resume_from,
            progress=False,
        )
        return self._scored.ended(result)

    def _own(self) -> Any:
        """Return the configuration that the trial brings."""
        return dataclasses.replace(unpacked(self._given["config"]), run_dir=str(self._run_dir))

    def _population(self) -> tuple[Any, Path | None]:
        """Return the configuration of a member, and the run that it goes on with."""
        from ray import tune

        from hotloop.runs import RunDirectory
        from hotloop.training.forking import fork
        from hotloop.training.position import Position

        values = {name: float(x) for name, x in self._given.items() if name != "run"}
        base = dataclasses.replace(unpacked(str(self._work.config)), run_dir=str(self._run_dir))
        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            self.schedules = {name: str(steps([(0.0, x)])) for name, x in values.items()}
            return dataclasses.replace(base, **self.schedules), None
        with checkpoint.as_directory() as source:
            stored = RunDirectory.open(source)
            position = Position.from_json(stored.checkpoints.load().state)
            before = {name: str(stored.config["config"][name]) for name in values}
            # An iteration goes by the progress at its start, but off policy by that at its end.
            first = position.timesteps + (position.replay is not None)
            at = min(1.0, first / base.total_timesteps)
            self.generation = _generation(
                position.timesteps, base.total_timesteps, self._work.generations
            )
            self.timesteps = position.timesteps
            self.schedules = {name: with_change(before[name], at, x) for name, x in values.items()}
            config = dataclasses.replace(base, **self.schedules)
            fork(Path(source), self._run_dir, config)
        return config, self._run_dir

    def _on_report(self, report: Report) -> bool:
        from ray import tune

        score, self.timesteps = self._scored.of(report), report.timesteps
        is_last = report.timesteps >= report.total_timesteps
        if self._scored.is_kept(report, score) and not is_last:
            tune.report({"timesteps": report.timesteps, "score": score})
        return False

    def _on_generation(self, report: Report) -> bool:
        """Report the end of a generation, with what others may go on from."""
        from ray import tune

        from hotloop.training.forking import copy_last

        score, self.timesteps = self._scored.of(report), report.timesteps
        now = _generation(report.timesteps, report.total_timesteps, self._work.generations)
        if now <= self.generation or report.timesteps >= report.total_timesteps:
            return False
        self.generation = now
        with tempfile.TemporaryDirectory(prefix="hotloop-") as directory:
            copied = Path(directory) / "run"
            copy_last(report.run_dir, copied)
            tune.report(
                {"timesteps": report.timesteps, "generation": now, "score": score},
                checkpoint=tune.Checkpoint.from_directory(str(copied)),
            )
        return False


def _generation(timesteps: int, total: int, generations: int) -> int:
    return timesteps * generations // total


def with_change(schedule: str, at: float, value: float) -> str:
    """Return the schedule that is as it was until a progress, and a value from there on.

    Args:
        schedule: a number, or values that are held.
        at: the progress.
        value: the new one, which may be the old one.
    """
    before = as_schedule(schedule)
    points = getattr(before, "points", ((0.0, before(0.0)),))
    if points[-1][1] == value:
        return str(steps(points))
    return str(steps([*points, (at, value)]))
