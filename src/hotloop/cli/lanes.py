"""Trainings in one process that share one batched update: `--seeds 1-8 --lanes on`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.streams import notify
from hotloop.cli.seeds import count_text, print_summary, run_paths
from hotloop.cli.training_plan import PlannedTraining
from hotloop.errors import HotloopError

if TYPE_CHECKING:
    from hotloop.runs import Report, RunResult
    from hotloop.training.algorithm import Algorithm


def choose_jobs(jobs: int, configs: Sequence[Any]) -> int:
    """Return the number of processes for lanes, which is one if updates run on a GPU."""
    from hotloop.learner import choose_device

    on_cpu = choose_device(configs[0].device).type == "cpu"
    return min(jobs, len(configs)) if on_cpu else 1


def train(
    algorithm: Algorithm,
    configs: Sequence[Any],
    planned: Sequence[PlannedTraining],
    directory: Path,
) -> int:
    """Train all lanes in this process.

    Returns:
        The exit code, 1 if a lane failed.

    Raises:
        RunDirectoryError: A run directory exists already.
        ConfigError: The algorithm's update can't train lanes.
    """
    from hotloop.runs import RunDirectory
    from hotloop.runs.learning_curve import learning_curve
    from hotloop.training.lanes import train_lanes
    from hotloop.training.live_line import LiveLine

    paths = [*run_paths(planned, directory).values()]
    print(f"{count_text(planned)}, {len(configs)} lanes in one process, in {directory}", flush=True)
    live, progress = LiveLine(), _CombinedProgress(len(configs))
    results: list[RunResult | Exception] = []
    with interrupt_once() as guard:

        def on_report(lane: int, report: Report) -> None:
            live.show(progress.update(lane, report))
            guard.check()

        # Train all lanes.
        try:
            results = train_lanes(
                algorithm,
                [
                    dataclasses.replace(config, run_dir=str(path))
                    for config, path in zip(configs, paths, strict=True)
                ],
                on_report=on_report,
            )
        except Interrupted as interrupt:
            live.close()
            print_summary(paths, directory)
            notify("interrupted: `hotloop resume RUN` continues one run by itself")
            return interrupt.exit_code
        live.close()
        guard.ignore()
        # Report failures, and draw the learning curves of the others.
        for training, path, result in zip(planned, paths, results, strict=True):
            if isinstance(result, Exception):
                kind = "" if isinstance(result, HotloopError) else f"{type(result).__name__}: "
                notify(f"{training.label} failed, the others continued: {kind}{result}")
                continue
            with contextlib.suppress(Exception):  # the run is complete without its plot
                learning_curve(RunDirectory.open(path))
        finished = [result for result in results if not isinstance(result, Exception)]
        if finished:
            print(finished[0].execution)
        print_summary(paths, directory)
    return 0 if len(finished) == len(results) else 1


class _CombinedProgress:
    """The progress of all lanes, as one report."""

    def __init__(self, num_lanes: int) -> None:
        self._reports: dict[int, Report] = {}
        self._num_lanes = num_lanes

    def update(self, lane: int, report: Report) -> Report:
        """Return a report with the total of steps and the interquartile mean of the returns."""
        import numpy as np

        from hotloop.base.statistics import interquartile_mean

        if report.activity:
            return report
        self._reports[lane] = report
        reports = self._reports.values()
        returns = [x.mean_return for x in reports if not math.isnan(x.mean_return)]
        return dataclasses.replace(
            report,
            timesteps=sum(x.timesteps for x in reports),
            total_timesteps=self._num_lanes * report.total_timesteps,
            elapsed_s=max(x.elapsed_s for x in reports),
            mean_return=float(interquartile_mean(np.array(returns))) if returns else math.nan,
            num_episodes=sum(x.num_episodes for x in reports),
        )
