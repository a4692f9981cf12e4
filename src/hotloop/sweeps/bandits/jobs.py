"""Jobs: what is left of a grid, dealt out as one call of the kernels each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hotloop.sweeps.bandits.file import Piece
from hotloop.sweeps.bandits.points import Point

# Points a job. They share the random numbers: in a random walk a run and step costs each of eight
# 15 ns, and one alone 50.
_MAX_GROUP = 8
_JOB_S = 30.0  # a job that would take longer has fewer points: it is what a kill can cost


@dataclass(frozen=True)
class Job:
    """The same runs of some points, told by their indices, in one environment."""

    points: tuple[int, ...]
    first_run: int
    num_runs: int


def jobs_of(points: Sequence[Point], missing: Sequence[Sequence[Piece]]) -> Iterator[Job]:
    """What is missing of each point, in jobs as large as can be.

    Points of one environment by eights, chunk after chunk: soon the first are whole.
    """
    left = (index for index, pieces in enumerate(missing) if pieces)
    for _, group in groupby(left, key=lambda index: id(points[index].environment)):
        indices = list(group)
        for start in range(0, len(indices), _MAX_GROUP):
            chunks: dict[tuple[int, int], list[int]] = {}
            for index in indices[start : start + _MAX_GROUP]:
                for _, first_run, num_runs in missing[index]:
                    chunks.setdefault((first_run, num_runs), []).append(index)
            for (first_run, num_runs), together in sorted(chunks.items()):
                yield Job(tuple(together), first_run, num_runs)


class Dealer:
    """Deals jobs out: large ones first, small ones at the end.

    Large ones share more; small ones at the end let all threads end together.
    """

    def __init__(self, jobs: Iterable[Job], *, num_threads: int, num_steps: int) -> None:
        self._jobs = deque(jobs)
        self._num_left = sum(len(job.points) for job in self._jobs)
        self._num_threads, self._num_steps = num_threads, num_steps
        self._step_s = 10e-9  # a run and step, until one has been measured

    def measured(self, job: Job, elapsed_s: float) -> None:
        """Learn from what a job took."""
        self._step_s = elapsed_s / (len(job.points) * job.num_runs * self._num_steps)

    def next(self) -> Job | None:
        """The next job; None if nothing is left."""
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        point_s = self._step_s * job.num_runs * self._num_steps
        num = min(_MAX_GROUP, self._num_left // (2 * self._num_threads), int(_JOB_S / point_s))
        num = max(num, 1)
        taken, rest = job.points[:num], job.points[num:]
        if rest:
            self._jobs.appendleft(replace(job, points=rest))
        self._num_left -= len(taken)
        return replace(job, points=taken)
