"""Schedules: when the learner has enough rows, and how many rows workers may write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hotloop.rollouts.processes.groups import WorkerGroup
from hotloop.rollouts.processes.shared_memory import (
    ACTING,
    BEGUN,
    DONE,
    GRANTS,
    LIMIT,
    NO_WAKE_TARGET,
    NUM_SLOTS,
    TAKEN,
    WAITING,
    SharedMemory,
)
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from hotloop.rollouts.protocol import CollectionOptions, Schedule
from hotloop.timing import span

# Interval at which a waiting learner reads the counters: a worker in a long step may have rows of
# which it has not notified the learner.
POLL_S = 0.02


class WorkerProgress:
    """The workers' row counters and the learner's position in them.

    Args:
        supervisor: Wakes the workers, and is polled while the learner waits.
        shared: Shared memory with the counters.
        groups: Group of each worker.
        options: Collection options.
        drop: Takes a number of rows of a worker without training on them.

    Attributes:
        version: Version of the newest published policy.
    """

    def __init__(
        self,
        supervisor: WorkerSupervisor,
        shared: SharedMemory,
        groups: Sequence[WorkerGroup],
        options: CollectionOptions,
        drop: Callable[[int, int], None],
    ) -> None:
        self.version = 0
        self.drop = drop
        self.shared = shared
        self.memory = shared.workers
        self.groups = groups
        self.options = options
        self.supervisor = supervisor

    def finished_rows(self) -> list[int]:
        """Return the finished rows of each worker since the start of the run."""
        return [memory.words[DONE] for memory in self.memory]

    def available(self) -> list[int]:
        """Return the number of rows of each worker that the learner can take."""
        return [
            done - g.next_row for done, g in zip(self.finished_rows(), self.groups, strict=True)
        ]

    def updates_until_too_old(self, rows: Sequence[int]) -> int:
        """Return how many versions may pass before a begun row, from `rows` on, is too old."""
        oldest_version = self.version
        for memory, row in zip(self.memory, rows, strict=True):
            version = memory.words[ACTING]
            if version >= 0:
                oldest_version = min(oldest_version, version)
            if memory.words[BEGUN] > row:
                slot_index, t = memory.slot_and_step(row)
                oldest_version = min(oldest_version, int(memory.versions[slot_index][t]))
        return max(0, self.options.max_policy_age - (self.version - oldest_version))

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait until `is_enough` returns True.

        Raises:
            HotloopError: A worker's environments can't be made, or something failed too often.
        """
        if not is_enough():
            with span("wait_for_workers", kind="wait"):
                while not is_enough():
                    self.supervisor.poll(POLL_S)
        # Read the failures that belong to these rows: they arrive as messages, rows in memory.
        self.supervisor.poll(0.0)


def _take_fragments(progress: WorkerProgress) -> list[int]:
    """Take T rows of every worker."""
    num_steps, memory = progress.options.num_steps, progress.memory
    stops = [group.next_row - group.next_row % num_steps + num_steps for group in progress.groups]
    if memory[0].words[LIMIT] < stops[0]:
        _grant_fragments(progress)
    progress.wait(lambda: all(m.words[DONE] >= u for m, u in zip(memory, stops, strict=True)))
    return [u - group.next_row for u, group in zip(stops, progress.groups, strict=True)]


def _take_total(progress: WorkerProgress) -> list[int]:
    """Take T × W rows in total, and at least one of every worker."""
    total = progress.options.num_steps * len(progress.memory)
    _grant_all(progress)

    def is_enough() -> bool:
        available = progress.available()
        return sum(available) >= total and min(available) > 0

    progress.wait(is_enough)
    return fair_shares(progress.available(), total)


def _take_all(progress: WorkerProgress) -> list[int]:
    """Take all finished rows, after waiting for those that would become too old."""
    if progress.options.in_fragments:
        return _take_ready(progress)
    groups, options = progress.groups, progress.options
    max_rows = len(groups) * (NUM_SLOTS * options.num_steps - 1)
    min_rows = min(-(-options.min_transitions // groups[0].num_envs), max_rows)

    def is_enough() -> bool:
        if sum(progress.available()) < min_rows:
            return False
        # Count unfinished rows only, because all finished ones are taken now.
        return progress.updates_until_too_old([m.words[DONE] for m in progress.memory]) > 0

    wake_target = progress.shared.wake_target
    wake_target[0] = sum(group.next_row for group in groups) + min_rows
    progress.wait(is_enough)
    wake_target[0] = NO_WAKE_TARGET
    return progress.available()


def _take_ready(progress: WorkerProgress) -> list[int]:
    """Take one whole fragment per worker on average, the oldest first."""
    # A fast worker may supply two, a slow one none. The learner waits for unfinished fragments that
    # would become too old, unless the options drop those.
    groups, num_steps = progress.groups, progress.options.num_steps
    wake_target, can_drop = progress.shared.wake_target, progress.options.drops_too_old

    def drop_too_old() -> None:
        oldest = progress.version - progress.options.max_policy_age
        workers = [
            worker for version, worker in find_ready(progress.finished_rows()) if version < oldest
        ]
        for worker in workers:  # oldest first, so each is its worker's next fragment
            progress.drop(worker, num_steps)
        if workers:
            _grant_all(progress)

    def find_ready(finished_rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return (version of the first row, worker) of each whole fragment, given finished rows."""
        fragments: list[tuple[int, int]] = []
        for worker, (memory, group) in enumerate(zip(progress.memory, groups, strict=True)):
            for row in range(group.next_row, finished_rows[worker] - num_steps + 1, num_steps):
                slot_index, t = memory.slot_and_step(row)
                fragments.append((int(memory.versions[slot_index][t]), worker))
        return sorted(fragments)

    def is_enough() -> bool:
        if can_drop:
            drop_too_old()
        finished_rows = progress.finished_rows()
        fragments = find_ready(finished_rows)
        num_missing = len(groups) - len(fragments)
        if num_missing > 0:
            # Wake up only after the rows that the missing fragments need.
            missing_rows = (
                num_steps - (d - g.next_row) % num_steps
                for d, g in zip(finished_rows, groups, strict=True)
            )
            wake_target[0] = sum(finished_rows) + sum(sorted(missing_rows)[:num_missing])
            return False
        if can_drop:
            return True
        next_rows = [group.next_row for group in groups]
        for _, worker in fragments:
            next_rows[worker] += num_steps
        return progress.updates_until_too_old(next_rows) > 0

    wake_target[0] = sum(group.next_row for group in groups) + num_steps * len(groups)
    progress.wait(is_enough)
    wake_target[0] = NO_WAKE_TARGET
    shares = [0] * len(groups)
    for _, worker in find_ready(progress.finished_rows())[: len(groups)]:
        shares[worker] += num_steps
    return shares


def _grant_fragments(progress: WorkerProgress) -> None:
    """Let every worker write its next fragment with the newest publication."""
    newest, num_steps = progress.shared.weights.newest, progress.options.num_steps
    for worker, (memory, group) in enumerate(zip(progress.memory, progress.groups, strict=True)):
        start = group.next_row - group.next_row % num_steps
        memory.words[GRANTS + memory.slot_and_step(start)[0]] = newest
        memory.words[LIMIT] = start + num_steps
        progress.supervisor.nudge(worker)


def _grant_all(progress: WorkerProgress) -> None:
    """Let every worker write until both of its slots are full, or the total is reached."""
    groups, num_steps = progress.groups, progress.options.num_steps
    progress.shared.total_limit[0] = sum(g.next_row for g in groups) + num_steps * len(groups)
    for worker, (memory, group) in enumerate(zip(progress.memory, groups, strict=True)):
        # Finishing a row writes the next observation. Within a slot that may be the place of the
        # first row that is not taken yet.
        is_within = group.next_row % num_steps > 0
        memory.words[TAKEN] = group.next_row
        memory.words[LIMIT] = group.next_row + NUM_SLOTS * num_steps - is_within
        if memory.words[WAITING]:
            progress.supervisor.nudge(worker)


class ScheduleFunctions(NamedTuple):
    """The learner's side of a schedule.

    Attributes:
        take: Waits for enough rows, and returns the number of rows to take of each worker.
        grant: Lets the workers collect the next rows.
        runs_free: Whether workers collect from the start, without waiting for the learner.
    """

    take: Callable[[WorkerProgress], list[int]]
    grant: Callable[[WorkerProgress], None]
    runs_free: bool = False


SCHEDULES: Mapping[Schedule, ScheduleFunctions] = {
    "barrier": ScheduleFunctions(_take_fragments, _grant_fragments),
    "variable": ScheduleFunctions(_take_total, _grant_all),
    "async": ScheduleFunctions(_take_all, _grant_all, runs_free=True),
}


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
