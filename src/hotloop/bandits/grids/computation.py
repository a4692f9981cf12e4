"""The computation of a grid: threads compute missing results, the calling thread stores them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotloop.bandits.games import Game
from hotloop.bandits.grids.grid_file import GridFile, Piece
from hotloop.bandits.grids.jobs import Job, JobScheduler, make_jobs
from hotloop.bandits.grids.points import Point
from hotloop.bandits.play_threads import PlayMonitor, play_jobs
from hotloop.bandits.run_settings import make_settings
from hotloop.bandits.running import chunk_sums
from hotloop.errors import HotloopError

_COMMIT_S = 0.25


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """The progress of a grid.

    Attributes:
        finished_points: number of points with all their runs.
        total_points: number of points.
        finished_run_steps: runs × steps computed or found in the file.
        total_run_steps: runs × steps of all points.
        stored_run_steps: runs × steps found in the file at the start.
        elapsed_s: seconds since the start of the grid.
    """

    finished_points: int
    total_points: int
    finished_run_steps: int
    total_run_steps: int
    stored_run_steps: int
    elapsed_s: float

    @property
    def steps_per_s(self) -> float:
        """Runs × steps computed per second so far."""
        return (self.finished_run_steps - self.stored_run_steps) / max(self.elapsed_s, 1e-9)

    @property
    def remaining_s(self) -> float:
        """Seconds until the end at this rate, NaN before the first result."""
        steps = self.total_run_steps - self.finished_run_steps
        if steps == 0:
            return 0.0
        return steps / self.steps_per_s if self.steps_per_s > 0 else math.nan


class _Outcome(NamedTuple):
    """The duration of a job, and the sums of each of its points."""

    elapsed_s: float
    blobs: list[bytes]


@dataclass(kw_only=True)
class Computation:
    """A computation that fills in the missing pieces of points and stores them.

    Attributes:
        points: all points of the grid.
        file: the file that receives sums.
        seed: seed of all random numbers.
        num_runs: number of runs of each point.
        steps: `num_steps`, `late_steps`, `steps_per_point`.
        num_threads: number of computing threads.
        started_at: start time of the grid, on `time.perf_counter`.
        on_progress: function called several times a second from the calling thread.
        prepare_s: seconds spent compiling kernels or loading compiled ones.
        computed_run_steps: runs × steps computed.
        monitor: counter of the seconds that threads spent in kernels.
    """

    points: Sequence[Point]
    file: GridFile
    seed: int
    num_runs: int
    steps: Mapping[str, int]
    num_threads: int
    started_at: float
    on_progress: Callable[[GridProgress], None] | None
    prepare_s: float = 0.0
    computed_run_steps: int = 0

    def __post_init__(self) -> None:
        self._num_steps = self.steps["num_steps"]
        self._total_run_steps = len(self.points) * self.num_runs * self._num_steps
        self._unsaved: list[tuple[Piece, bytes]] = []
        self.monitor = PlayMonitor()

    def compute(self, missing: Sequence[Sequence[Piece]]) -> None:
        """Compute and store these pieces, one list per point."""
        self._ids = {index: pieces[0].point for index, pieces in enumerate(missing) if pieces}
        self._num_missing = [len(pieces) for pieces in missing]
        run_steps = sum(piece.num_runs for pieces in missing for piece in pieces) * self._num_steps
        self._finished_run_steps = self._total_run_steps - run_steps
        self._stored_run_steps = self._finished_run_steps - self.computed_run_steps
        jobs = make_jobs(self.points, missing)
        scheduler = JobScheduler(jobs, num_threads=self.num_threads, num_steps=self._num_steps)
        self._report_progress()
        if run_steps:
            self._prepare()
            self._run_jobs(scheduler)

    def _prepare(self) -> None:
        """Compile every kind of agent and environment, or load them from the cache."""
        began_at = time.perf_counter()
        kinds = {(type(point.agent), type(point.environment)): point for point in self.points}
        steps: dict[str, Any] = dict(self.steps)
        settings = make_settings(self.seed, **steps)
        for point in kinds.values():
            Game([point.agent], point.environment, settings)
        self.prepare_s += time.perf_counter() - began_at

    def _run_jobs(self, scheduler: JobScheduler) -> None:
        """Run all jobs on the threads, and save their results now and then."""
        committed_at = time.monotonic()

        def add(job: Job, outcome: _Outcome) -> None:
            scheduler.record_time(job, outcome.elapsed_s)
            for index, blob in zip(job.points, outcome.blobs, strict=True):
                piece = Piece(self._ids[index], job.first_run, job.num_runs)
                self._unsaved.append((piece, blob))
                self._num_missing[index] -= 1
                self.computed_run_steps += job.num_runs * self._num_steps
                self._finished_run_steps += job.num_runs * self._num_steps

        def save_and_report() -> None:
            nonlocal committed_at
            if time.monotonic() - committed_at >= _COMMIT_S:
                self._save()
                committed_at = time.monotonic()
            self._report_progress()

        try:
            play_jobs(
                scheduler.next_job,
                self._play,
                num_threads=self.num_threads,
                monitor=self.monitor,
                add=add,
                report=save_and_report,
            )
        except BaseException:
            with contextlib.suppress(HotloopError):  # the first exception is raised below
                self._save()
            raise
        self._save()
        self._report_progress()

    def _play(self, job: Job) -> _Outcome:
        started_at = time.perf_counter()
        sums = chunk_sums(
            [self.points[index].agent for index in job.points],
            self.points[job.points[0]].environment,
            seed=self.seed,
            first_run=job.first_run,
            num_runs=job.num_runs,
            monitor=self.monitor,
            **self.steps,
        )
        elapsed_s = time.perf_counter() - started_at
        return _Outcome(elapsed_s, [chunk.to_bytes() for chunk in sums])

    def _save(self) -> None:
        # An interruption between the commit and the next line stores the same rows again, which
        # changes nothing.
        if self._unsaved:
            self.file.add(self._unsaved)
            self._unsaved.clear()

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                GridProgress(
                    finished_points=self._num_missing.count(0),
                    total_points=len(self._num_missing),
                    finished_run_steps=self._finished_run_steps,
                    total_run_steps=self._total_run_steps,
                    stored_run_steps=self._stored_run_steps,
                    elapsed_s=time.perf_counter() - self.started_at,
                )
            )
