"""Jobs of a grid: the missing results, split into calls of the kernels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hotloop.bandits.grids.grid_file import Piece
from hotloop.bandits.grids.points import Point

# Maximum points per job. They share the random numbers: in a random walk, a run's step takes 15 ns
# for each of eight points, and 50 ns for a single one.
_MAX_GROUP = 8
_MAX_JOB_S = 30.0  # limits the work lost by a kill: jobs that take longer get fewer points


@dataclass(frozen=True)
class Job:
    """A range of runs for some points, given by their indices, in one environment."""

    points: tuple[int, ...]
    first_run: int
    num_runs: int


def make_jobs(points: Sequence[Point], missing: Sequence[Sequence[Piece]]) -> Iterator[Job]:
    """Yield the missing pieces as the largest possible jobs.

    Groups of eight points in one environment go chunk by chunk, so that the first finish early.
    """
    unfinished = (index for index, pieces in enumerate(missing) if pieces)
    for _, group in groupby(unfinished, key=lambda index: id(points[index].environment)):
        indices = list(group)
        for start in range(0, len(indices), _MAX_GROUP):
            chunks: dict[tuple[int, int], list[int]] = {}
            for index in indices[start : start + _MAX_GROUP]:
                for _, first_run, num_runs in missing[index]:
                    chunks.setdefault((first_run, num_runs), []).append(index)
            for (first_run, num_runs), group_points in sorted(chunks.items()):
                yield Job(tuple(group_points), first_run, num_runs)


class JobScheduler:
    """A queue of jobs: large ones first, small ones at the end.

    Points of a large job share more work. Small last jobs let all threads finish together.
    """

    def __init__(self, jobs: Iterable[Job], *, num_threads: int, num_steps: int) -> None:
        self._jobs = deque(jobs)
        self._num_left = sum(len(job.points) for job in self._jobs)
        self._num_threads, self._num_steps = num_threads, num_steps
        self._step_s = 10e-9  # seconds per run and step, before the first measurement

    def record_time(self, job: Job, elapsed_s: float) -> None:
        """Update the estimated time of a step with the time of a finished job."""
        self._step_s = elapsed_s / (len(job.points) * job.num_runs * self._num_steps)

    def next_job(self) -> Job | None:
        """Return the next job, or None at the end."""
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        point_s = self._step_s * job.num_runs * self._num_steps
        num = min(_MAX_GROUP, self._num_left // (2 * self._num_threads), int(_MAX_JOB_S / point_s))
        num = max(num, 1)
        points, remainder = job.points[:num], job.points[num:]
        if remainder:
            self._jobs.appendleft(replace(job, points=remainder))
        self._num_left -= len(points)
        return replace(job, points=points)
