"""Trainings in one process, whose updates are made as one: `--seeds 1-8 --lanes on`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import tell
from hotloop.cli.planned import Planned
from hotloop.cli.seeds import conclude, counted, paths_of
from hotloop.errors import HotloopError
from hotloop.system.signals import Ended, end_once

if TYPE_CHECKING:
    from hotloop.runs import Report, Result
    from hotloop.training.algorithm import Algorithm


def choose_jobs(jobs: int, configs: Sequence[Any]) -> int:
    """Return in how many processes lanes are trained best: one where updates run on a GPU.

    Args:
        jobs: processes that the cores have room for.
        configs: of the lanes.
    """
    from hotloop.learner import choose_device

    on_cpu = choose_device(configs[0].device).type == "cpu"
    return min(jobs, len(configs)) if on_cpu else 1


def train(
    algorithm: Algorithm, configs: Sequence[Any], planned: Sequence[Planned], directory: Path
) -> int:
    """Train all of them in this process.

    Args:
        algorithm: what is trained.
        configs: one for each lane.
        planned: what each is called.
        directory: where their run directories are made.

    Returns:
        The exit code: 1 where a lane failed.

    Raises:
        RunDirectoryError: a lane has a directory there already.
        ConfigError: the update can't be made of lanes.
    """
    from hotloop.runs import RunDirectory
    from hotloop.runs.live import LiveLine
    from hotloop.runs.plots import learning_curve
    from hotloop.training.lanes import train_lanes

    paths = [*paths_of(planned, directory).values()]
    print(f"{counted(planned)}, {len(configs)} lanes in one process, in {directory}", flush=True)
    live, standing = LiveLine(), _Standing(len(configs))
    results: list[Result | Exception] = []
    with end_once() as ending:

        def on_report(lane: int, report: Report) -> None:
            live.show(standing.after(lane, report))
            ending.check()

        try:
            results = train_lanes(
                algorithm,
                [
                    dataclasses.replace(config, run_dir=str(path))
                    for config, path in zip(configs, paths, strict=True)
                ],
                on_report=on_report,
            )
        except Ended as ended:
            live.close()
            conclude(paths, directory)
            tell("interrupted: `hotloop resume` goes on with a run, alone")
            return ended.exit_code
        live.close()
        ending.ignore()
        for one, path, result in zip(planned, paths, results, strict=True):
            if isinstance(result, Exception):
                named = "" if isinstance(result, HotloopError) else f"{type(result).__name__}: "
                tell(f"{one.label} ended, and the others went on: {named}{result}")
                continue
            with contextlib.suppress(Exception):  # the run is whole without its picture
                learning_curve(RunDirectory.open(path))
        done = [result for result in results if not isinstance(result, Exception)]
        if done:
            print(done[0].execution)
        conclude(paths, directory)
    return 0 if len(done) == len(results) else 1


class _Standing:
    """Where the lanes stand together."""

    def __init__(self, num_lanes: int) -> None:
        self._reports: dict[int, Report] = {}
        self._num_lanes = num_lanes

    def after(self, lane: int, report: Report) -> Report:
        """Return a report of all lanes: steps in all, the interquartile mean of the returns."""
        import numpy as np

        from hotloop.statistics import interquartile_mean

        if report.doing:
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
