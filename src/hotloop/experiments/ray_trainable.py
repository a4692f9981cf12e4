"""A training in Ray Tune, with reports, and in a population a checkpoint per generation."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.cache import SHARING
from hotloop.base.children import add_module_paths
from hotloop.experiments.worker import ScoreTracker, failure_reason, unpack
from hotloop.ops.schedules import as_schedule, steps

if TYPE_CHECKING:
    from hotloop.runs import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """Settings that all trials of a sweep on Ray share.

    Attributes:
        algorithm: name of the algorithm on the command line.
        metric: a key of `plan.METRICS`.
        runs_per_update: number of runs that share a compiled update.
        directory: parent directory of the runs.
        sys_path: `sys.path` of the sweep's process.
        config: packed base configuration of a population, None if each trial has its own.
        generations: number of generations of a population.
    """

    algorithm: str
    metric: str
    runs_per_update: int
    directory: str
    sys_path: list[str]
    config: str | None = None
    generations: int = 1


def train_trial(params: Mapping[str, Any], settings: TrialSettings) -> None:
    """Train a trial, and report it to Ray Tune.

    Args:
        params: current option values of a member, or the packed `config` of another trial.
        settings: settings that all trials share.
    """
    from ray import tune

    SHARING.runs = settings.runs_per_update
    add_module_paths(settings.sys_path)
    trial = _Trial(params, settings, Path(settings.directory) / tune.get_context().get_trial_name())
    try:
        state, score, reason, seconds = trial.train()
    except Exception as error:  # this trial failed, but the next one may succeed
        state, score, reason, seconds = "failed", None, failure_reason(error), None
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
    """A training, or in a population its continuation after a checkpoint.

    Attributes:
        timesteps: transitions collected so far.
        generation: generation of a population.
        schedules: option → its schedule as text. Empty without a population.
    """

    def __init__(self, params: Mapping[str, Any], settings: TrialSettings, run_dir: Path) -> None:
        from hotloop.algorithms import find

        self._params, self._settings, self._run_dir = params, settings, run_dir
        self._algorithm = find(settings.algorithm)
        self._tracker = ScoreTracker(settings.metric)
        self.timesteps = self.generation = 0
        self.schedules: dict[str, str] = {}

    def train(self) -> list[Any]:
        """Train to the end, and return state, score, reason and seconds."""
        shutil.rmtree(self._run_dir, ignore_errors=True)  # left by an earlier part or process
        is_population = self._settings.config is not None
        config, resume_from = self._member() if is_population else (self._config(), None)
        result = self._algorithm.train(
            config,
            on_report=self._on_generation if is_population else self._on_report,
            resume_from=resume_from,
            progress=False,
        )
        return self._tracker.outcome(result)

    def _config(self) -> Any:
        """Return the configuration of an independent trial."""
        return dataclasses.replace(unpack(self._params["config"]), run_dir=str(self._run_dir))

    def _member(self) -> tuple[Any, Path | None]:
        """Return the configuration of a member, and the run directory that it continues."""
        from ray import tune

        from hotloop.runs import RunDirectory
        from hotloop.training.checkpoint_state import CheckpointState
        from hotloop.training.forking import fork

        values = {name: float(x) for name, x in self._params.items() if name != "run"}
        base = dataclasses.replace(unpack(str(self._settings.config)), run_dir=str(self._run_dir))
        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            self.schedules = {name: str(steps([(0.0, x)])) for name, x in values.items()}
            return dataclasses.replace(base, **self.schedules), None
        with checkpoint.as_directory() as source:
            stored = RunDirectory.open(source)
            state = CheckpointState.from_json(stored.checkpoints.load().state)
            old = {name: str(stored.config["config"][name]) for name in values}
            # Schedules depend on the progress at the start of an iteration, off-policy at its end.
            first = state.timesteps + (state.replay is not None)
            start = min(1.0, first / base.total_timesteps)
            self.generation = _generation(
                state.timesteps, base.total_timesteps, self._settings.generations
            )
            self.timesteps = state.timesteps
            self.schedules = {n: extend_schedule(old[n], start, x) for n, x in values.items()}
            config = dataclasses.replace(base, **self.schedules)
            fork(Path(source), self._run_dir, config)
        return config, self._run_dir

    def _on_report(self, report: Report) -> bool:
        from ray import tune

        score, self.timesteps = self._tracker.update(report), report.timesteps
        is_last = report.timesteps >= report.total_timesteps
        if self._tracker.should_report(report, score) and not is_last:
            tune.report({"timesteps": report.timesteps, "score": score})
        return False

    def _on_generation(self, report: Report) -> bool:
        """Report the end of a generation, with a checkpoint that other members may continue."""
        from ray import tune

        from hotloop.training.forking import copy_last

        score, self.timesteps = self._tracker.update(report), report.timesteps
        generation = _generation(
            report.timesteps, report.total_timesteps, self._settings.generations
        )
        if generation <= self.generation or report.timesteps >= report.total_timesteps:
            return False
        self.generation = generation
        with tempfile.TemporaryDirectory(prefix="hotloop-") as directory:
            run_copy = Path(directory) / "run"
            copy_last(report.run_dir, run_copy)
            tune.report(
                {"timesteps": report.timesteps, "generation": generation, "score": score},
                checkpoint=tune.Checkpoint.from_directory(str(run_copy)),
            )
        return False


def _generation(timesteps: int, total: int, generations: int) -> int:
    return timesteps * generations // total


def extend_schedule(schedule: str, start: float, value: float) -> str:
    """Return a schedule with another value from a point of the training on.

    Args:
        schedule: a number, or a step schedule.
        start: progress from 0 to 1 at which the new value starts.
        value: the new value, which may equal the old one.
    """
    old_schedule = as_schedule(schedule)
    points = getattr(old_schedule, "points", ((0.0, old_schedule(0.0)),))
    if points[-1][1] == value:
        return str(steps(points))
    return str(steps([*points, (start, value)]))
