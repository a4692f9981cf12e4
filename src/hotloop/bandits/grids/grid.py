"""A grid: its points, and the computation of the results that its file lacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.bandits.checked_settings import check_int
from hotloop.bandits.grids.computation import Computation, GridProgress
from hotloop.bandits.grids.grid_file import GridFile, Piece
from hotloop.bandits.grids.grid_table import GridRow, GridTable
from hotloop.bandits.grids.points import make_points, varied_fields
from hotloop.bandits.results import BanditResult, RunSums
from hotloop.bandits.run_settings import CHUNK, MAX_RUNS, MAX_SEED, make_settings, resolve_threads
from hotloop.bandits.running import KERNEL_VERSION


class Grid:
    """All combinations of settings of one kind of agent and one kind of environment.

    Args:
        agent_name: a name of `AGENTS`.
        agent_fields: field → its values: a sequence, a single value, or text that `range_values`
            parses. Other fields keep their defaults.
        environment_name: a name of `ENVIRONMENTS`.
        environment_fields: the same for the environment. A value of `means` is a tuple, a value of
            `rewards` a matrix or a file's path. In text, `;` separates them ("0.9,0.8;0.5,0.4").
        num_steps: steps of each run.
        late_steps: number of last steps that `late_…` average over. Default: a tenth.
        steps_per_point: steps that each point of a curve averages over. Default: 1 for up to 2000
            steps, otherwise the least number that gives at most 1000 points.

    Raises:
        ConfigError: a range has wrong syntax, or a point is invalid. The message names it.
        UnknownNameError: there is no such agent, environment or field.
    """

    def __init__(
        self,
        agent_name: str,
        agent_fields: Mapping[str, Any] | None = None,
        *,
        environment_name: str = "gaussian",
        environment_fields: Mapping[str, Any] | None = None,
        num_steps: int = 1000,
        late_steps: int | None = None,
        steps_per_point: int | None = None,
    ) -> None:
        settings = make_settings(0, num_steps, late_steps, steps_per_point)
        self._steps = {
            "num_steps": settings.num_steps,
            "late_steps": settings.late_steps,
            "steps_per_point": settings.steps_per_point,
        }
        self._points = make_points(
            agent_name, agent_fields or {}, environment_name, environment_fields or {}, self._steps
        )
        self.ranges = varied_fields(list(self._points.values()))

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._points)

    def run(
        self,
        path: str | Path,
        *,
        num_runs: int = 2000,
        seed: int = 0,
        threads: int | None = None,
        on_progress: Callable[[GridProgress], None] | None = None,
    ) -> GridTable:
        """Compute the results that the file lacks.

        Results are stored every quarter of a second. After an exception, including Ctrl-C, all
        finished results are stored too, and the same call resumes from them.

        Args:
            path: the SQLite file, which may contain other grids and other seeds.
            num_runs: runs of each point. If the file has another number of runs, full chunks of
                2048 are read from it, and a last incomplete one is computed again.
            seed: seed of all random numbers, the same for all points.
            threads: number of computing threads. Default: the process's number of cores.
            on_progress: function called several times a second from the calling thread.

        Returns:
            The finished grid, with the same results after an interruption.

        Raises:
            ConfigError: `num_runs`, `seed` or `threads` are invalid.
            BanditError: the file is no grid, is damaged or of another version. It is not changed.
            OutputError: the file can't be written.
        """
        # Check the arguments.
        started_at = time.perf_counter()
        path, points = Path(path), list(self._points.values())
        num_runs = check_int("num_runs", num_runs, 1, MAX_RUNS)
        seed = check_int("seed", seed, 0, MAX_SEED)
        threads = resolve_threads(threads)
        # Compute the missing pieces until the file has all of them.
        with GridFile(path, seed=seed, kernel_version=KERNEL_VERSION) as file:
            computation = Computation(
                points=points,
                file=file,
                seed=seed,
                num_runs=num_runs,
                steps=self._steps,
                num_threads=threads,
                started_at=started_at,
                on_progress=on_progress,
            )
            ids = file.ids(list(self._points))
            all_pieces = [_split_runs(point, num_runs) for point in ids]
            while True:
                stored = file.pieces(ids)
                computation.compute(
                    [[piece for piece in pieces if piece not in stored] for pieces in all_pieces]
                )
                # Another process that adds runs to these points removes their incomplete last chunk
                # from the file. The next iteration computes it again.
                totals = [_total_sums(file, pieces) for pieces in all_pieces]
                if None not in totals:
                    break
            num_of_other_kernels = file.num_of_other_kernels(ids)
        # Build the table from the sums of all pieces.
        rows = tuple(
            GridRow(
                settings=point.settings,
                config=point.config,
                result=BanditResult.from_sums(
                    sums,
                    agent=point.agent,
                    environment=point.environment,
                    seed=seed,
                    **self._steps,
                ),
            )
            for point, sums in zip(points, totals, strict=True)
            if sums is not None
        )
        elapsed_s = time.perf_counter() - started_at - computation.prepare_s
        run_steps = computation.computed_run_steps
        kernel_share = math.nan
        if run_steps:
            kernel_share = computation.monitor.kernel_s / (elapsed_s * threads)
        return GridTable(
            rows=rows,
            ranges=self.ranges,
            path=path,
            seed=seed,
            num_runs=num_runs,
            **self._steps,
            threads=threads,
            elapsed_s=elapsed_s,
            prepare_s=computation.prepare_s,
            kernel_share=kernel_share,
            computed_run_steps=run_steps,
            num_of_other_kernels=num_of_other_kernels,
        )


def _split_runs(point: int, num_runs: int) -> list[Piece]:
    return [
        Piece(point, first_run, min(CHUNK, num_runs - first_run))
        for first_run in range(0, num_runs, CHUNK)
    ]


def _total_sums(file: GridFile, pieces: Sequence[Piece]) -> RunSums | None:
    """Add all pieces of a point in order; return None if one is missing from the file."""
    total = None
    for piece in pieces:
        sums = file.sums(piece)
        if sums is None:
            return None
        total = sums if total is None else total + sums
    return total
