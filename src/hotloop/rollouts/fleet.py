"""Rollouts by workers in other processes or machines, which do not synchronize with each other.

A worker steps its environments and acts in them, row after row, up to a limit. A transport starts
the workers, sends them weights and limits, and returns their rows. This module does everything
else: it chooses the rows that the learner takes, accounts for all others, and resumes a run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hotloop import timing
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting, WorkerAccount, time_shares
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.failures import Failures
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.schedules import (
    Progress,
    RowLimits,
    RowVersions,
    row_limits,
    take_rows,
    too_old_rows,
)
from hotloop.rollouts.state import GroupState, RolloutPosition, RolloutState
from hotloop.rollouts.worker_group import WorkerGroup
from hotloop.timing import Recording, span
from hotloop.types import Array, Episode, Fragment


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerStart:
    """The first row of a process, and the episodes that run at this row.

    Attributes:
        row: Number of its first row.
        first_episode: Number of the first episodes. None: each environment's next one.
        resume: Number and hash of each environment's episode in the run to resume.
        arrays: The actions and hidden states of these episodes; see `RolloutState.to_arrays`.
            Environments are counted from 0 for each worker.
    """

    row: int
    first_episode: int | None = None
    resume: Sequence[tuple[int, str]] | None = None
    arrays: Mapping[str, Array] = dataclasses.field(default_factory=dict)


class WorkerRows(NamedTuple):
    """Rows of a worker.

    Attributes:
        fragment: The rows, with `versions`. Nothing overwrites them. Only `truncated` can be
            changed, since the other rows may be read-only views of the transport's memory.
        episodes: Records of the episodes that ended in them, (T, N) of `EPISODE_DTYPE`.
        read_info: Returns the logged numbers of an episode from its last row and its environment,
            0 … N − 1, until the next rows are read.
    """

    fragment: Fragment
    episodes: Array
    read_info: Callable[[int, int], Mapping[str, float]]


class Transport(RowVersions, Protocol):
    """The connection to workers: starts and replaces them, and moves weights, limits and rows.

    Attributes:
        num_workers: W.
        envs_per_worker: Environments of each worker.
        can_replay: Whether episodes can be replayed.
        failures: Failures of environments and workers.
    """

    num_workers: int
    envs_per_worker: int
    can_replay: bool
    failures: Failures

    def start(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Send the collection settings to the workers, which are ready.

        The transport then calls the methods of `fleet` that begin with `on_`, and `start_of`.

        Raises:
            HotloopError: A worker can't be set up.
        """
        ...

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Make workers act with these parameters in rows that begin after this call."""
        ...

    def call(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Make a call in each worker between two of its rows, and return the results in order.

        `start` may not have been called yet. A process that replaces a lost one makes the call
        again.

        Raises:
            HotloopError: A call failed, or workers failed too often.
        """
        ...

    def grant(self, limits: RowLimits) -> None:
        """Permit the workers to write rows up to new limits, beginning with the newest policy."""
        ...

    def finished_rows(self) -> list[int]:
        """Return the row of each worker after the last finished one."""
        ...

    def collected_rows(self, *, is_over: bool) -> list[int]:
        """Return the row of each worker after the last collected one, finished or not.

        Args:
            is_over: Whether to count rows that were begun and will not be completed.
        """
        ...

    def read(self, worker: int, start: int, stop: int) -> WorkerRows:
        """Return and release finished rows. `start` is the first row that was not read."""
        ...

    def poll(self) -> None:
        """Receive messages without waiting, and replace lost workers.

        Raises:
            HotloopError: A worker can't be replaced, or something failed too often.
        """
        ...

    def wait(self, num_rows: int) -> None:
        """Wait for rows or failures, for a limited time, and call `poll`.

        Args:
            num_rows: Sum of `finished_rows` for which the caller waits. It may return earlier.
        """
        ...

    def recordings(self) -> Sequence[Recording]:
        """Return the timing of the workers, whose components are `worker-0`, `worker-1`, …"""
        ...

    def node(self, worker: int) -> str:
        """Return the last node of a worker in a cluster, empty on this machine."""
        ...


class FleetRollout:
    """Collects fragments with the workers of a transport; see `Rollout`.

    Args:
        transport: Workers, which are ready.
        policy: Acting policy. Its parameters are published to the workers.
        options: Collection options.
        close: Ends the workers, and then calls `store_accounting`.

    Attributes:
        transport: The same.
        num_transitions: Transitions returned so far, over all environments.
    """

    def __init__(
        self,
        transport: Transport,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        close: Callable[[], None],
    ) -> None:
        self.transport = transport
        self.policy = policy
        self.num_transitions = 0
        self._close = close
        self._options = options
        # Whether workers collect from the start, without waiting for the learner.
        self._is_async = options.schedule == "async"
        num_envs, num_workers = transport.envs_per_worker, transport.num_workers
        self._progress = Progress(options, transport, num_workers=num_workers, num_envs=num_envs)
        self._groups = [
            WorkerGroup(
                worker * num_envs,
                num_envs,
                options.num_steps,
                policy.network.action_spec,
                can_replay=transport.can_replay,
            )
            for worker in range(num_workers)
        ]
        self._restored: tuple[Mapping[str, Array], RolloutPosition] | None = None
        # For each worker that has restored its environments: those that it could not restore.
        self._restarted_envs: list[Sequence[int] | None] = [None] * num_workers
        self._is_set_up = False
        self._granted_rows: list[int] = []  # next rows at the last grant
        self._episodes: list[Episode] = []
        self._lost: Counter[str] = Counter()  # steps that were begun and not finished
        self._dropped: Counter[str] = Counter()
        self._num_trained = 0
        # Number of trained rows, and the sum and the maximum of their policy ages.
        self._num_trained_rows = self._age_sum = self._max_age = 0
        self._final_accounting: Accounting | None = None
        self.publish(policy.snapshot)

    # --- protocol ---------------------------------------------------------------------------------

    @property
    def last_failure(self) -> str:
        """See `Rollout.last_failure`."""
        return self.transport.failures.last_failure

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`."""
        if self._final_accounting is None:  # otherwise the workers have ended
            self.transport.publish(snapshot)
            self._progress.version = snapshot.version
        self.policy.load(snapshot)

    def collect(self) -> list[Fragment]:
        """Return the next fragments, which later calls do not overwrite; see `Rollout.collect`.

        Raises:
            EnvironmentFailure: Environments or workers failed too often.
            NonFiniteError: The policy's outputs were NaN or infinite.
            HotloopError: The workers can't be reached.
        """
        self.set_up()
        if self._granted_rows != self._progress.next_rows:
            self._grant()
        shares = self._wait_for_shares()
        with span("copy", kind="transfer"):
            fragments = [self._take(worker, rows) for worker, rows in enumerate(shares) if rows]
        if self._is_async or self._options.overlap:
            self._grant()
        return fragments

    @property
    def group_sizes(self) -> list[int]:
        """See `Rollout.group_sizes`."""
        return [self.transport.envs_per_worker] * self.transport.num_workers

    def call_groups(self, calls: Sequence[EnvCall]) -> list[Any]:
        """See `Rollout.call_groups`."""
        if self._final_accounting is not None:
            raise EnvironmentFailure(f"`{calls[0].name}` needs environments, but they are closed")
        with span("wait_for_workers", kind="wait"):
            return self.transport.call(calls)

    def updates_allowed(self) -> int | None:
        """See `Rollout.updates_allowed`."""
        if not self._is_async:
            return None
        return self._progress.updates_until_too_old(self._progress.next_rows)

    def watch(self) -> None:
        """See `Rollout.watch`."""
        if self._final_accounting is None:
            self.transport.poll()

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        groups: list[GroupState] = []
        for group in self._groups:
            if (state := group.state()) is None:
                # Without the first row of every worker a resumed run starts new episodes.
                return RolloutState(num_transitions=self.num_transitions)
            groups.append(state)
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.prepare_restore(arrays, position)
        if not position.episodes:
            return []
        self.set_up()
        restarted_envs: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker in range(len(self._groups)):
                while (restarted := self._restarted_envs[worker]) is None:
                    self.transport.wait(0)
                restarted_envs += [worker * self.transport.envs_per_worker + i for i in restarted]
        return restarted_envs

    def prepare_restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> None:
        """Let the workers begin where another rollout ended; see `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.episodes:
            return
        # Keep them: a worker that dies before its first row must be restored again.
        stored = {name: x for name, x in arrays.items() if name.startswith(("actions.", "memory."))}
        self._restored = stored, position
        for worker, (group, row) in enumerate(
            zip(self._groups, position.vector_steps, strict=True)
        ):
            group.first_row = group.next_row = self._progress.next_rows[worker] = row

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        if self._final_accounting is not None:
            return self._final_accounting
        return self._make_accounting(is_over=False, with_workers=with_workers)

    def close(self) -> None:
        """See `Rollout.close`."""
        self._close()

    def store_accounting(self) -> None:
        """Store the final accounting of ended workers. The transport is not used afterwards."""
        if self._final_accounting is None:
            self._final_accounting = self._make_accounting(is_over=True)

    # --- calls of the transport -------------------------------------------------------------------

    def start_of(self, worker: int, row: int) -> WorkerStart:
        """Return the start of a process that collects from `row` on."""
        group = self._groups[worker]
        start = WorkerStart(row=row, first_episode=group.cuts.get(row))
        # Until a worker has written a row, its processes resume the episodes of the earlier run.
        if self._restored is None or row != group.first_row:
            return start
        stored, position = self._restored
        first_env = worker * self.transport.envs_per_worker
        env_numbers = range(first_env, first_env + self.transport.envs_per_worker)
        arrays = {
            f"{kind}.{i}": stored[f"{kind}.{env}"]
            for i, env in enumerate(env_numbers)
            for kind in ("actions", "memory")
            if f"{kind}.{env}" in stored
        }
        resume = [position.episodes[env] for env in env_numbers]
        return dataclasses.replace(start, resume=resume, arrays=arrays)

    def on_resumed(self, worker: int, restarted_envs: Sequence[int], obs: Array) -> None:
        """Record that a worker has restored its environments, except `restarted_envs`."""
        assert self._restored is not None
        self._restarted_envs[worker] = restarted_envs
        self._groups[worker].resume(*self._restored, restarted_envs, obs)

    def on_lost(
        self, worker: int, row: int, num_rows: int, first_episode: int, reason: str, traceback: str
    ) -> WorkerStart:
        """Count a lost process, drop its unfinished rows, and return the start of the next process.

        Args:
            worker: Number of the worker.
            row: First row of the next process.
            num_rows: Number of rows that the lost process had begun from `row` on.
            first_episode: First episode of the next process.
            reason: Cause of the loss.
            traceback: Traceback of the lost process, empty if there is none.

        Raises:
            EnvironmentFailure: There were too many failures.
        """
        self.cut(worker, row, num_rows, first_episode)
        self.transport.failures.count_worker(worker, row, reason, traceback)
        return self.start_of(worker, row)

    def cut(self, worker: int, row: int, num_rows: int, first_episode: int) -> None:
        """Drop the unfinished rows of a lost process without counting a failure; see `on_lost`."""
        self._lost["worker died"] += self.transport.envs_per_worker * num_rows
        if row > self._groups[worker].first_row:
            self._groups[worker].cuts[row] = first_episode

    # --- steps of `collect` -----------------------------------------------------------------------

    def set_up(self) -> None:
        """Send the collection settings to the workers. Further calls do nothing.

        Raises:
            EnvironmentFailure: The rollout is closed.
        """
        if self._final_accounting is not None:
            raise EnvironmentFailure("this rollout is closed: create a new one")
        if not self._is_set_up:
            self._is_set_up = True
            self.transport.start(self, self._progress.next_rows)
            if self._is_async:
                self._grant()

    def _grant(self) -> None:
        """Let the workers collect the next rows."""
        self._granted_rows = list(self._progress.next_rows)
        self.transport.grant(row_limits(self._progress))

    def _wait_for_shares(self) -> list[int]:
        """Wait until there are enough rows, and return the number to take of each worker."""
        shares = self._find_shares()
        if isinstance(shares, int):
            with span("wait_for_workers", kind="wait"):
                while isinstance(shares, int):
                    self.transport.wait(sum(self._progress.finished_rows) + shares)
                    shares = self._find_shares()
        # Receive the failures that belong to these rows: messages may arrive after rows.
        self.transport.poll()
        return shares

    def _find_shares(self) -> list[int] | int:
        """Return the result of `take_rows`, after dropping rows that are too old."""
        progress = self._progress
        progress.finished_rows = self.transport.finished_rows()
        if self._is_async:
            counts = too_old_rows(progress)
            if any(counts):
                for worker, num_rows in enumerate(counts):
                    if num_rows:
                        self._drop(worker, num_rows)
                self._grant()
        return take_rows(progress)

    def _take(self, worker: int, num_rows: int) -> Fragment:
        """Take the next rows of a worker for training."""
        fragment, num_valid = self._read(worker, num_rows, is_dropped=False)
        self.num_transitions += num_valid
        self._num_trained += num_valid
        version, versions = self._progress.version, fragment.versions
        assert versions is not None
        self._num_trained_rows += num_rows
        self._age_sum += version * num_rows - int(versions.sum())
        self._max_age = max(self._max_age, version - fragment.policy_version)
        return fragment

    def _drop(self, worker: int, num_rows: int) -> None:
        """Take the next rows of a worker without training on them. Their episodes count."""
        self._dropped["too old"] += self._read(worker, num_rows, is_dropped=True)[1]

    def _read(self, worker: int, num_rows: int, *, is_dropped: bool) -> tuple[Fragment, int]:
        """Read and release a worker's next rows. Return them and the number of transitions."""
        group = self._groups[worker]
        rows = self.transport.read(worker, group.next_row, group.next_row + num_rows)
        valid = rows.fragment.valid
        num_valid = int(np.count_nonzero(valid))
        self._episodes += group.take(*rows, is_dropped=is_dropped)
        self._progress.next_rows[worker] = group.next_row
        if num_valid < valid.size:
            num_failed = int(np.count_nonzero(rows.episodes["has_failures"] & ~valid))
            self._dropped["environment failed"] += num_failed
            self._dropped["reset"] += valid.size - num_valid - num_failed
        return rows.fragment, num_valid

    # --- accounting -------------------------------------------------------------------------------

    def _make_accounting(self, *, is_over: bool, with_workers: bool = True) -> Accounting:
        """Return the accounting so far. If `is_over`, rows in flight count as dropped."""
        groups, num_envs = self._groups, self.transport.envs_per_worker
        num_taken = sum(group.next_row - group.first_row for group in groups)
        rows = zip(self._collected_rows(is_over=is_over), self._progress.next_rows, strict=True)
        in_flight = num_envs * sum(row - next_row for row, next_row in rows)
        collected = num_envs * num_taken + in_flight + sum(self._lost.values())
        dropped = self._dropped + self._lost
        if is_over and in_flight:
            dropped["run ended"], in_flight = in_flight, 0
        mean_age = self._age_sum / self._num_trained_rows if self._num_trained_rows else 0.0
        return Accounting(
            collected=collected,
            trained=self._num_trained,
            dropped=dict(dropped),
            in_flight=in_flight,
            policy_age=(mean_age, self._max_age),
            workers=self._worker_accounts() if with_workers else (),
        )

    def _collected_rows(self, *, is_over: bool) -> list[int]:
        if not self._is_set_up:
            return self._progress.next_rows
        return self.transport.collected_rows(is_over=is_over)

    def _worker_accounts(self) -> list[WorkerAccount]:
        transport, failures = self.transport, self.transport.failures
        rows = self._collected_rows(is_over=False)
        recordings = transport.recordings()
        return [
            WorkerAccount(
                worker=worker,
                steps=transport.envs_per_worker * (rows[worker] - group.first_row),
                restarts=failures.restarts[worker],
                env_failures=failures.env_failures[worker],
                node=transport.node(worker),
                **time_shares(
                    timing.merge(
                        [x.tree() for x in recordings if x.component == f"worker-{worker}"]
                    )
                ),
            )
            for worker, group in enumerate(self._groups)
        ]
