"""A grid: what there is to play, and playing what its file does not hold yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.bandits.described import whole
from hotloop.bandits.folding import CHUNK
from hotloop.bandits.results import Result, Sums
from hotloop.bandits.running import KERNEL_VERSION
from hotloop.bandits.settings import MAX_RUNS, MAX_SEED, settings_from, threads_from
from hotloop.sweeps.bandits.computing import Computation, GridProgress
from hotloop.sweeps.bandits.file import GridFile, Piece
from hotloop.sweeps.bandits.points import points_of, varied
from hotloop.sweeps.bandits.table import GridRow, GridTable


class Grid:
    """All combinations of settings of one kind of agent and one kind of environment.

    Args:
        agent_name: a name of `AGENTS`.
        agent_fields: field → its values: a sequence, a single one, or text as `values_from` reads
            it. Fields that are not named keep their usual value.
        environment_name: a name of `ENVIRONMENTS`.
        environment_fields: likewise. A value of `means` is a tuple, of `rewards` a matrix or a
            file's path; as text, such values have semicolons between them ("0.9,0.8;0.5,0.4").
        num_steps: steps of each run.
        late_steps: the steps at the end that `late_…` are taken over; a tenth by default.
        steps_per_point: how many steps a curve's point is the mean of; at most 1000 points (up to
            2000 steps: as many as steps) by default.

    Raises:
        ConfigError: a range is written wrongly, or a point makes no sense; it is named.
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
        settings = settings_from(0, num_steps, late_steps, steps_per_point)
        self._steps = {
            "num_steps": settings.num_steps,
            "late_steps": settings.late_steps,
            "steps_per_point": settings.steps_per_point,
        }
        self._points = points_of(
            agent_name, agent_fields or {}, environment_name, environment_fields or {}, self._steps
        )
        self.ranges = varied(list(self._points.values()))

    def __len__(self) -> int:
        """How many points it has."""
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
        """Compute what the file does not hold yet.

        Every quarter of a second what has been computed is in the file for good. After an
        exception, Ctrl-C's among them, what had ended by then is kept too, and the same call goes
        on from there.

        Args:
            path: the SQLite file; other grids and other seeds may be in it too.
            num_runs: runs of each point. Fewer or more than are in the file: full chunks of 2048
                are taken from there, a last one that is not full is computed anew.
            seed: of all random numbers, the same for all points.
            threads: how many compute; as many as the process has cores by default.
            on_progress: called some times a second, from the calling thread.

        Returns:
            The finished grid: the same whether it was stopped in between or not.

        Raises:
            ConfigError: `num_runs`, `seed` or `threads` make no sense.
            BanditError: the file is no grid, is damaged or of another version; it stays as it is.
            OutputError: the file can't be written.
        """
        started_at = time.perf_counter()
        path, points = Path(path), list(self._points.values())
        num_runs, seed = whole("num_runs", num_runs, 1, MAX_RUNS), whole("seed", seed, 0, MAX_SEED)
        threads = threads_from(threads)
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
            wanted = [_pieces_of(one, num_runs) for one in ids]
            while True:
                there = file.pieces(ids)
                computation.compute(
                    [[piece for piece in pieces if piece not in there] for pieces in wanted]
                )
                # Another process that adds runs to these points takes a last chunk that is not full
                # out of the file; then it is computed once more.
                read = [_folded(file, pieces) for pieces in wanted]
                if None not in read:
                    break
            num_of_other_kernels = file.num_of_other_kernels(ids)
        rows = tuple(
            GridRow(
                settings=point.settings,
                config=point.config,
                result=Result.from_sums(
                    sums,
                    agent=point.agent,
                    environment=point.environment,
                    seed=seed,
                    **self._steps,
                ),
            )
            for point, sums in zip(points, read, strict=True)
            if sums is not None
        )
        elapsed_s = time.perf_counter() - started_at - computation.prepare_s
        computed = computation.computed_run_steps
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
            kernel_share=computation.kernel_s / (elapsed_s * threads) if computed else math.nan,
            computed_run_steps=computed,
            num_of_other_kernels=num_of_other_kernels,
        )


def _pieces_of(point: int, num_runs: int) -> list[Piece]:
    """What a point with so many runs consists of."""
    return [
        Piece(point, first_run, min(CHUNK, num_runs - first_run))
        for first_run in range(0, num_runs, CHUNK)
    ]


def _folded(file: GridFile, pieces: Sequence[Piece]) -> Sums | None:
    """All pieces of a point, added in order; None if one is not there."""
    total = None
    for piece in pieces:
        sums = file.sums(piece)
        if sums is None:
            return None
        total = sums if total is None else total + sums
    return total
