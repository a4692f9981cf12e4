"""Schedules: when there is enough for the learner to take, and how far workers may go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hotloop.rollouts.protocol import CollectionOptions, Schedule
from hotloop.rollouts.workers.groups import Group
from hotloop.rollouts.workers.shared_memory import (
    ACTING,
    BEGUN,
    DONE,
    GRANTS,
    LIMIT,
    NOBODY_WAITS,
    NUM_SLOTS,
    TAKEN,
    WAITING,
    SharedMemory,
)
from hotloop.rollouts.workers.supervisor import Supervisor
from hotloop.timing import span

# The learner looks at the counters by itself so often; a worker in a long step may have rows that
# it has told nobody of.
LOOK_S = 0.02


class Progress:
    """How far the workers have come, and what of it was taken.

    Args:
        supervisor: wakes the workers, and is looked to while they are waited for.
        shared: where they tell of it.
        groups: of each of them.
        plan: how they collect.
        drop: takes the next rows of a worker, so many, that nobody learns from.

    Attributes:
        version: of the policy that was published last.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        shared: SharedMemory,
        groups: Sequence[Group],
        plan: CollectionOptions,
        drop: Callable[[int, int], None],
    ) -> None:
        self.version = 0
        self.drop = drop
        self.shared = shared
        self.memory = shared.workers
        self.groups = groups
        self.plan = plan
        self.supervisor = supervisor

    def done(self) -> list[int]:
        """Rows of each worker that may be taken, or were, since the start of the run."""
        return [memory.words[DONE] for memory in self.memory]

    def available(self) -> list[int]:
        """Rows of each worker that may be taken."""
        return [done - g.taken for done, g in zip(self.done(), self.groups, strict=True)]

    def updates_until_too_old(self, rows: Sequence[int]) -> int:
        """Versions that the policy may advance before each worker's row is too old, if begun."""
        oldest = self.version
        for memory, row in zip(self.memory, rows, strict=True):
            acting = memory.words[ACTING]
            if acting >= 0:
                oldest = min(oldest, acting)
            if memory.words[BEGUN] > row:
                which, t = memory.place(row)
                oldest = min(oldest, int(memory.versions[which][t]))
        return max(0, self.plan.max_policy_age - (self.version - oldest))

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait until it is.

        Raises:
            HotloopError: a worker's environments can't be made, or something failed too often.
        """
        if not is_enough():
            with span("wait_for_workers", kind="wait"):
                while not is_enough():
                    self.supervisor.look(LOOK_S)
        # Failures are told by message, rows by memory: those of the rows that have come are there.
        self.supervisor.look(0.0)


def _take_fragments(progress: Progress) -> list[int]:
    """T rows of every worker."""
    num_steps, memory = progress.plan.num_steps, progress.memory
    until = [group.taken - group.taken % num_steps + num_steps for group in progress.groups]
    if memory[0].words[LIMIT] < until[0]:
        _grant_fragments(progress)
    progress.wait(lambda: all(m.words[DONE] >= u for m, u in zip(memory, until, strict=True)))
    return [u - group.taken for u, group in zip(until, progress.groups, strict=True)]


def _take_total(progress: Progress) -> list[int]:
    """T × W rows in all, and at least one of every worker."""
    total = progress.plan.num_steps * len(progress.memory)
    _grant_all(progress)

    def is_enough() -> bool:
        available = progress.available()
        return sum(available) >= total and min(available) > 0

    progress.wait(is_enough)
    return fair_shares(progress.available(), total)


def _take_all(progress: Progress) -> list[int]:
    """All there is, first ready first; and what would become too old must have come."""
    if progress.plan.in_fragments:
        return _take_ready(progress)
    groups, plan = progress.groups, progress.plan
    most = len(groups) * (NUM_SLOTS * plan.num_steps - 1)
    minimum = min(-(-plan.minimum // groups[0].num_envs), most)

    def is_enough() -> bool:
        if sum(progress.available()) < minimum:
            return False
        # What is still in the making; what has come is taken now.
        return progress.updates_until_too_old([m.words[DONE] for m in progress.memory]) > 0

    wanted = progress.shared.wanted
    wanted[0] = sum(group.taken for group in groups) + minimum
    progress.wait(is_enough)
    wanted[0] = NOBODY_WAITS
    return progress.available()


def _take_ready(progress: Progress) -> list[int]:
    """As many whole fragments as there are workers, the oldest that are ready first.

    Of a fast worker two, of a slow one none; but what is in the making and would become too old is
    waited for. Where that is dropped instead, nobody is waited for.
    """
    groups, num_steps = progress.groups, progress.plan.num_steps
    wanted, drops = progress.shared.wanted, progress.plan.drops_too_old

    def drop_too_old() -> None:
        oldest = progress.version - progress.plan.max_policy_age
        old = [worker for version, worker in ready(progress.done()) if version < oldest]
        for worker in old:  # the oldest first, so of each worker the next
            progress.drop(worker, num_steps)
        if old:
            _grant_all(progress)

    def ready(done: Sequence[int]) -> list[tuple[int, int]]:
        """Version of the first row, and worker, of what is whole of so many rows of each."""
        found: list[tuple[int, int]] = []
        for worker, (memory, group) in enumerate(zip(progress.memory, groups, strict=True)):
            for row in range(group.taken, done[worker] - num_steps + 1, num_steps):
                which, t = memory.place(row)
                found.append((int(memory.versions[which][t]), worker))
        return sorted(found)

    def is_enough() -> bool:
        if drops:
            drop_too_old()
        done = progress.done()
        found = ready(done)
        missing = len(groups) - len(found)
        if missing > 0:
            # Rows until so many more can be whole: being told before that is waking up in vain.
            left = (
                num_steps - (d - g.taken) % num_steps for d, g in zip(done, groups, strict=True)
            )
            wanted[0] = sum(done) + sum(sorted(left)[:missing])
            return False
        if drops:
            return True
        following = [group.taken for group in groups]
        for _, worker in found:
            following[worker] += num_steps
        return progress.updates_until_too_old(following) > 0

    wanted[0] = sum(group.taken for group in groups) + num_steps * len(groups)
    progress.wait(is_enough)
    wanted[0] = NOBODY_WAITS
    shares = [0] * len(groups)
    for _, worker in ready(progress.done())[: len(groups)]:
        shares[worker] += num_steps
    return shares


def _grant_fragments(progress: Progress) -> None:
    """Let every worker make its next fragment, by what was published last."""
    newest, num_steps = progress.shared.weights.newest, progress.plan.num_steps
    for worker, (memory, group) in enumerate(zip(progress.memory, progress.groups, strict=True)):
        start = group.taken - group.taken % num_steps
        memory.words[GRANTS + memory.place(start)[0]] = newest
        memory.words[LIMIT] = start + num_steps
        progress.supervisor.nudge(worker)


def _grant_all(progress: Progress) -> None:
    """Let every worker go on until both of its slots are full, or until there is the total."""
    groups, num_steps = progress.groups, progress.plan.num_steps
    progress.shared.total_limit[0] = sum(group.taken for group in groups) + num_steps * len(groups)
    for worker, (memory, group) in enumerate(zip(progress.memory, groups, strict=True)):
        # A row's last act is to write the next one's observation: where that stands within a
        # slot, it may be the one of the first row that was not taken.
        is_within = group.taken % num_steps > 0
        memory.words[TAKEN] = group.taken
        memory.words[LIMIT] = group.taken + NUM_SLOTS * num_steps - is_within
        if memory.words[WAITING]:
            progress.supervisor.nudge(worker)


class Way(NamedTuple):
    """A schedule, for the learner.

    Attributes:
        take: wait until there is enough; gives the rows to take of each worker.
        grant: let the workers collect what is taken next.
        runs_free: whether workers go on from the start, whoever waits for them.
    """

    take: Callable[[Progress], list[int]]
    grant: Callable[[Progress], None]
    runs_free: bool = False


SCHEDULES: Mapping[Schedule, Way] = {
    "barrier": Way(_take_fragments, _grant_fragments),
    "variable": Way(_take_total, _grant_all),
    "async": Way(_take_all, _grant_all, runs_free=True),
}


def fair_shares(available: Sequence[int], total: int) -> list[int]:
    """As even a division of `total` as what each has allows: min(a_i, c), or one more, with Σ =
    `total`.

    Args:
        available: what each has.
        total: at most their sum.
    """
    shares = [0] * len(available)
    order = sorted(range(len(available)), key=lambda i: available[i])
    for place, i in enumerate(order):
        shares[i] = min(available[i], total // (len(order) - place))
        total -= shares[i]
    return shares
