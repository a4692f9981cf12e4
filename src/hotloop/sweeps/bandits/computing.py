"""A grid at work: threads compute what is missing, the calling thread stores it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from hotloop.bandits.games import Game, Watch
from hotloop.bandits.running import chunk_sums
from hotloop.bandits.settings import settings_from
from hotloop.errors import HotloopError
from hotloop.sweeps.bandits.file import GridFile, Piece
from hotloop.sweeps.bandits.jobs import Dealer, Job, jobs_of
from hotloop.sweeps.bandits.points import Point

_COMMIT_S = 0.25
_GRACE_S = 2.0  # for jobs that are under way when a grid is stopped


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """Where a grid stands.

    Attributes:
        points: how many of `all_points` have all their runs.
        all_points: the grid's.
        run_steps: runs × steps that are there, of `all_run_steps`.
        all_run_steps: runs × steps of all points.
        kept_run_steps: those among `run_steps` that were in the file already.
        elapsed_s: seconds since the grid began.
    """

    points: int
    all_points: int
    run_steps: int
    all_run_steps: int
    kept_run_steps: int
    elapsed_s: float

    @property
    def steps_per_s(self) -> float:
        """Runs × steps computed per second, so far."""
        return (self.run_steps - self.kept_run_steps) / max(self.elapsed_s, 1e-9)

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes at this rate; NaN before anything is known."""
        left = self.all_run_steps - self.run_steps
        return left / self.steps_per_s if self.steps_per_s > 0 else (math.nan if left else 0.0)


@dataclass(frozen=True)
class _Outcome:
    """What became of a job: sums, or an exception, or neither where it was not begun."""

    job: Job
    elapsed_s: float = 0.0
    kernel_s: float = 0.0
    blobs: tuple[bytes, ...] = ()
    error: BaseException | None = None


@dataclass(kw_only=True)
class Computation:
    """Computes pieces of points, and stores them.

    Attributes:
        points: the grid's.
        file: where sums go.
        seed: of all random numbers.
        num_runs: runs that each point is to have.
        steps: `num_steps`, `late_steps`, `steps_per_point`.
        num_threads: how many compute.
        started_at: when the grid began, on `time.perf_counter`.
        on_progress: called some times a second, from the calling thread.
        kernel_s: seconds that threads spent in kernels, added up.
        prepare_s: seconds that went into compiling, or loading what was compiled.
        computed_run_steps: runs × steps that were computed.
    """

    points: Sequence[Point]
    file: GridFile
    seed: int
    num_runs: int
    steps: Mapping[str, int]
    num_threads: int
    started_at: float
    on_progress: Callable[[GridProgress], None] | None
    kernel_s: float = 0.0
    prepare_s: float = 0.0
    computed_run_steps: int = 0

    def __post_init__(self) -> None:
        self._num_steps = self.steps["num_steps"]
        self._all_run_steps = len(self.points) * self.num_runs * self._num_steps
        self._unsaved: list[tuple[Piece, bytes]] = []

    def compute(self, missing: Sequence[Sequence[Piece]]) -> None:
        """Compute these pieces, a list a point, and store them."""
        self._ids = {index: pieces[0].point for index, pieces in enumerate(missing) if pieces}
        self._pieces_left = [len(pieces) for pieces in missing]
        left = sum(piece.num_runs for pieces in missing for piece in pieces) * self._num_steps
        self._present = self._all_run_steps - left
        self._kept = self._present - self.computed_run_steps
        jobs = jobs_of(self.points, missing)
        dealer = Dealer(jobs, num_threads=self.num_threads, num_steps=self._num_steps)
        self._tell()
        if left:
            self._prepare()
            self._compute(dealer)

    def _prepare(self) -> None:
        """Compile every kind of agent and environment, or load them from the cache."""
        began_at = time.perf_counter()
        kinds = {(type(one.agent), type(one.environment)): one for one in self.points}
        steps: dict[str, Any] = dict(self.steps)
        settings = settings_from(self.seed, **steps)
        for point in kinds.values():
            Game([point.agent], point.environment, settings)
        self.prepare_s += time.perf_counter() - began_at

    def _compute(self, dealer: Dealer) -> None:
        # Threads of our own: those of `concurrent.futures` are waited for when the interpreter
        # ends, and after Ctrl-C a job may have half a minute to go.
        jobs: SimpleQueue[Job | None] = SimpleQueue()
        outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        stop = threading.Event()
        for _ in range(self.num_threads):
            target, args = self._work, (jobs, outcomes, stop)
            threading.Thread(target=target, args=args, daemon=True, name="grid").start()
        num_under_way, committed_at = 0, time.monotonic()
        try:
            while True:
                # One job more a thread, so that none waits for this one.
                while num_under_way < 2 * self.num_threads and (job := dealer.next()):
                    jobs.put(job)
                    num_under_way += 1
                if not num_under_way and not self._unsaved:
                    return
                with contextlib.suppress(Empty):
                    outcome = outcomes.get(timeout=0.1)
                    num_under_way -= 1
                    self._take(outcome)
                    dealer.measured(outcome.job, outcome.elapsed_s)
                if time.monotonic() - committed_at >= _COMMIT_S or not num_under_way:
                    self._save()
                    committed_at = time.monotonic()
                self._tell()
        except BaseException:
            stop.set()
            give_up_at = time.monotonic() + _GRACE_S
            with contextlib.suppress(Empty, HotloopError):
                for _ in range(num_under_way):
                    outcome = outcomes.get(timeout=max(0.0, give_up_at - time.monotonic()))
                    if outcome.error is None:
                        self._take(outcome)
            with contextlib.suppress(HotloopError):  # the first exception is what is told
                self._save()
            raise
        finally:
            for _ in range(self.num_threads):
                jobs.put(None)

    def _work(
        self,
        jobs: SimpleQueue[Job | None],
        outcomes: SimpleQueue[_Outcome],
        stop: threading.Event,
    ) -> None:
        while (job := jobs.get()) is not None:
            if stop.is_set():
                outcomes.put(_Outcome(job))
                continue
            started_at = time.perf_counter()
            try:
                watch = Watch()
                sums = chunk_sums(
                    [self.points[index].agent for index in job.points],
                    self.points[job.points[0]].environment,
                    seed=self.seed,
                    first_run=job.first_run,
                    num_runs=job.num_runs,
                    watch=watch,
                    **self.steps,
                )
                elapsed_s = time.perf_counter() - started_at
                blobs = tuple(one.to_bytes() for one in sums)
                outcomes.put(_Outcome(job, elapsed_s, watch.kernel_s, blobs))
            except BaseException as error:
                outcomes.put(_Outcome(job, error=error))

    def _take(self, outcome: _Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        job = outcome.job
        self.kernel_s += outcome.kernel_s
        for index, blob in zip(job.points, outcome.blobs, strict=False):  # none if not begun
            piece = Piece(self._ids[index], job.first_run, job.num_runs)
            self._unsaved.append((piece, blob))
            self._pieces_left[index] -= 1
            self.computed_run_steps += job.num_runs * self._num_steps
            self._present += job.num_runs * self._num_steps

    def _save(self) -> None:
        # Interrupted between the commit and the next line, the same rows are stored once more: that
        # changes nothing.
        if self._unsaved:
            self.file.add(self._unsaved)
            self._unsaved.clear()

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                GridProgress(
                    points=self._pieces_left.count(0),
                    all_points=len(self._pieces_left),
                    run_steps=self._present,
                    all_run_steps=self._all_run_steps,
                    kept_run_steps=self._kept,
                    elapsed_s=time.perf_counter() - self.started_at,
                )
            )
