"""Schedules: how many rows the learner takes from each worker, and how many a worker may begin.

They depend only on numbers of rows and on policy versions. A row is one step of a worker's
environments, and its number counts from the start of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hotloop.rollouts.protocol import CollectionOptions

NUM_AHEAD = 2
"""Maximum number of a worker's fragments that the learner has not taken."""


class RowVersions(Protocol):
    """The policy versions of rows."""

    def version(self, worker: int, row: int) -> int:
        """Return the policy version of a finished row that the learner has not read."""
        ...

    def oldest_version(self, worker: int, row: int) -> int | None:
        """Return the oldest policy version of the rows that a worker has begun, from `row` on."""
        ...


class Progress:
    """The rows of all workers, and the newest version.

    Args:
        options: Collection options.
        versions: Policy versions of the rows.
        num_workers: W.
        num_envs: Environments of each worker.

    Attributes:
        options, num_envs: The same.
        row_version: Returns the version of a finished row from its worker and its number.
        oldest_version: Returns the oldest version of the rows that a worker has begun, from a row
            on, or None.
        version: Version of the newest published policy.
        next_rows: Row of each worker after the last one that the learner has taken.
        finished_rows: Row of each worker after the last finished one.
    """

    def __init__(
        self, options: CollectionOptions, versions: RowVersions, *, num_workers: int, num_envs: int
    ) -> None:
        self.options, self.num_envs = options, num_envs
        self.row_version, self.oldest_version = versions.version, versions.oldest_version
        self.version = 0
        self.next_rows = [0] * num_workers
        self.finished_rows = [0] * num_workers

    def available(self) -> list[int]:
        """Return the number of rows of each worker that the learner can take."""
        return [
            stop - start for start, stop in zip(self.next_rows, self.finished_rows, strict=True)
        ]

    def updates_until_too_old(self, rows: Sequence[int]) -> int:
        """Return how many versions may pass until a row in progress, from `rows` on, is too old."""
        oldest_version = self.version
        for worker, row in enumerate(rows):
            version = self.oldest_version(worker, row)
            if version is not None and version < oldest_version:
                oldest_version = version
        return max(0, self.options.max_policy_age - (self.version - oldest_version))


class RowLimits(NamedTuple):
    """The first rows that workers must not begin.

    Attributes:
        rows: The first such row of each worker.
        total: The first such row, counted over all workers. A worker of which the learner has taken
            all rows may begin one beyond it, since the learner needs at least one of each worker.
            None: there is none.
    """

    rows: list[int]
    total: int | None = None


def too_old_rows(progress: Progress) -> list[int]:
    """Return the number of finished rows of each worker that are too old to be taken."""
    options, counts = progress.options, [0] * len(progress.next_rows)
    oldest_version = progress.version - options.max_policy_age
    if oldest_version <= 0:  # versions begin at 0
        return counts
    size = options.num_steps if options.in_fragments else 1
    for worker, (start, stop) in enumerate(
        zip(progress.next_rows, progress.finished_rows, strict=True)
    ):
        row = start
        while row + size <= stop and progress.row_version(worker, row) < oldest_version:
            row += size
        counts[worker] = row - start
    return counts


def _take_fragments(progress: Progress) -> list[int] | int:
    """Take T rows of every worker."""
    stops = row_limits(progress).rows
    missing = sum(
        max(0, stop - done) for stop, done in zip(stops, progress.finished_rows, strict=True)
    )
    return missing or [stop - start for start, stop in zip(progress.next_rows, stops, strict=True)]


def _take_total(progress: Progress) -> list[int] | int:
    """Take T × W rows in total, and at least one of every worker."""
    available = progress.available()
    total = progress.options.num_steps * len(available)
    if sum(available) < total:
        return total - sum(available)
    return fair_shares(available, total) if min(available) > 0 else 1


def _take_all(progress: Progress) -> list[int] | int:
    """Take all finished rows, after waiting for those that would become too old."""
    if progress.options.in_fragments:
        return _take_ready(progress)
    options, available = progress.options, progress.available()
    max_rows = len(available) * (NUM_AHEAD * options.num_steps - 1)
    min_rows = min(-(-options.min_transitions // progress.num_envs), max_rows)
    missing = min_rows - sum(available)
    if missing > 0:
        return missing
    # Check only unfinished rows, because the learner takes all finished ones now.
    return available if progress.updates_until_too_old(progress.finished_rows) > 0 else 1


def _take_ready(progress: Progress) -> list[int] | int:
    """Take one whole fragment per worker on average, the oldest first."""
    # A fast worker may supply two, a slow one none. The learner waits for unfinished fragments that
    # would become too old, unless the options drop those.
    num_steps, next_rows = progress.options.num_steps, progress.next_rows
    rows = list(zip(next_rows, progress.finished_rows, strict=True))
    fragments = sorted(
        (progress.row_version(worker, row), worker)
        for worker, (start, stop) in enumerate(rows)
        for row in range(start, stop - num_steps + 1, num_steps)
    )
    num_missing = len(rows) - len(fragments)
    if num_missing > 0:  # wait for the rows that the missing fragments need
        missing_rows = sorted(num_steps - (stop - start) % num_steps for start, stop in rows)
        return sum(missing_rows[:num_missing])
    if not progress.options.drops_too_old:
        unfinished_rows = list(next_rows)
        for _, worker in fragments:
            unfinished_rows[worker] += num_steps
        if progress.updates_until_too_old(unfinished_rows) <= 0:
            return 1
    shares = [0] * len(rows)
    for _, worker in fragments[: len(rows)]:
        shares[worker] += num_steps
    return shares


_TAKE = {"barrier": _take_fragments, "variable": _take_total, "async": _take_all}


def take_rows(progress: Progress) -> list[int] | int:
    """Return the number of rows to take from each worker.

    If there are too few, return how many more must finish, over all workers, before this function
    can return something else.
    """
    return _TAKE[progress.options.schedule](progress)


def row_limits(progress: Progress) -> RowLimits:
    """Return the rows that workers must not begin before the next rows are taken.

    With `barrier` these are the ends of fragments. Otherwise a worker may be two fragments ahead,
    with `variable` within the total of the next rows.
    """
    schedule, num_steps = progress.options.schedule, progress.options.num_steps
    if schedule == "barrier":
        return RowLimits([row - row % num_steps + num_steps for row in progress.next_rows])
    limits = [row + NUM_AHEAD * num_steps for row in progress.next_rows]
    total = sum(progress.next_rows) + num_steps * len(limits)
    return RowLimits(limits, total if schedule == "variable" else None)


def fair_shares(available: Sequence[int], total: int) -> list[int]:
    """Divide `total` as evenly as possible: shares min(a_i, c), or one more, that sum to `total`.

    Args:
        available: Upper bound of each share.
        total: Sum of the shares, at most the sum of `available`.
    """
    shares = [0] * len(available)
    order = sorted(range(len(available)), key=lambda i: available[i])
    for rank, i in enumerate(order):
        shares[i] = min(available[i], total // (len(order) - rank))
        total -= shares[i]
    return shares
