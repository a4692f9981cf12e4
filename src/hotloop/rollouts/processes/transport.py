"""Worker processes that write rows in place into shared memory.

The word `LIMIT` bounds a worker's rows, and other words count them. Nothing waits except a worker
that is two fragments ahead of the learner, and a learner without enough rows.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
from collections.abc import Sequence
from typing import Any

from hotloop.policies import ActingPolicy, EpisodeNoise, PolicySnapshot
from hotloop.rollouts.accounting import recordings_of_this_run
from hotloop.rollouts.env_calls import EnvCall, pickle_call
from hotloop.rollouts.failures import traceback_cause, worker_error
from hotloop.rollouts.fleet import FleetRollout, WorkerRows
from hotloop.rollouts.processes.channel import ChannelClosed
from hotloop.rollouts.processes.messages import (
    INFERENCE,
    CallRequest,
    InferenceSetup,
    Setup,
)
from hotloop.rollouts.processes.process import IN_A_STEP, Activity, WorkerProcess
from hotloop.rollouts.processes.shared_memory import (
    ACTING,
    BEGUN,
    DONE,
    EPISODE,
    EVALUATING,
    EVALUATION,
    GRANTS,
    LIMIT,
    NO_WAKE_TARGET,
    NUM_SLOTS,
    SERIAL,
    STARTED,
    STEPPED,
    TAKEN,
    WAITING,
    NetworkOutline,
    create_shared_memory,
)
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.schedules import RowLimits
from hotloop.timing import Recording
from hotloop.types import Array

# Interval at which a waiting learner reads the counters: a worker may be in a long step and have
# finished rows without notifying the learner.
_POLL_S = 0.02


class ProcessTransport:
    """The workers of a pool, and their shared memory; see `Transport`.

    Args:
        supervisor: Supervisor of the workers, which are ready.
        policy: Acting policy.
        options: Collection options.
        num_envs: Environments of each worker that the policy acts in. None: all.

    Attributes:
        memory: Memory of each worker.
        followers: Rollouts of the policies that act within the steps of this one. Each has a
            transport of its own, a `FollowingTransport`.

    Raises:
        ConfigError: There is not enough memory.
    """

    def __init__(
        self,
        supervisor: WorkerSupervisor,
        policy: ActingPolicy,
        options: CollectionOptions,
        num_envs: int | None = None,
    ) -> None:
        self.num_workers = len(supervisor.workers)
        self.envs_per_worker = supervisor.greeting.num_envs if num_envs is None else num_envs
        self.followers: list[tuple[FollowingTransport, FleetRollout]] = []
        self.can_replay, self.failures = supervisor.ready.can_replay, supervisor.failures
        self._supervisor, self._policy, self._options = supervisor, policy, options
        self._fd, self._shared = create_shared_memory(
            policy.network,
            num_steps=options.num_steps,
            num_workers=self.num_workers,
            num_envs=self.envs_per_worker,
        )
        self.memory = self._shared.workers
        self._next_rows = [0] * self.num_workers
        self._has_total_limit = options.schedule == "variable"
        # Schedule `variable` takes rows in unequal shares.
        self._takes_fragments = options.schedule == "barrier" or (
            options.schedule == "async" and options.in_fragments
        )
        self._fleet: FleetRollout

    # --- calls of the rollout: see `Transport` ----------------------------------------------------

    def start(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Set the counters to the first rows, and send the settings to all processes."""
        self.begin(fleet, first_rows)
        for _, follower in self.followers:
            follower.set_up()
        self._supervisor.transport = self
        if self._supervisor.inference is not None:
            self.set_up(self._supervisor.inference)
        for worker in self._supervisor.workers:
            self.set_up(worker)

    def begin(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Set the counters to the first rows."""
        self._fleet, self._next_rows = fleet, list(first_rows)
        for memory, row in zip(self.memory, first_rows, strict=True):
            for word in (BEGUN, STEPPED, DONE, LIMIT):
                memory.words[word] = row
            memory.words[ACTING] = -1

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Write the parameters into the shared memory."""
        self._shared.weights.write(snapshot)

    def call(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Send the calls as pickles, and wait for all results. See `Transport.call`."""
        workers = self._supervisor.workers  # a replaced process changes the list
        requests = [CallRequest(call=base64.b64encode(pickle_call(x)).decode()) for x in calls]
        for worker in workers:
            worker.is_called, worker.call_result = False, None
        while any(worker.call_result is None for worker in workers):
            for worker, request in zip(workers, requests, strict=True):
                if worker.ready is not None and not worker.is_called:
                    worker.is_called = True
                    with contextlib.suppress(ChannelClosed):  # `poll` detects its end
                        worker.channel.send(request)
            self._supervisor.poll(_POLL_S)
        results: list[Any] = []
        for worker in workers:
            result = worker.call_result
            assert result is not None
            if result.message:
                raise worker_error(
                    worker.name, result.type, result.message, is_starting=False
                ) from traceback_cause(result.traceback)
            results.append(pickle.loads(base64.b64decode(result.value)))
        return results

    def grant(self, limits: RowLimits) -> None:
        """Write the limits, and wake the workers that wait for them."""
        for follower, _ in self.followers:
            follower.write_limits(limits)
        self.write_limits(limits)

    def write_limits(self, limits: RowLimits) -> None:
        """Write the limits and the newest publication into the shared memory."""
        newest, num_steps = self._shared.weights.newest, self._options.num_steps
        if limits.total is not None:
            self._shared.total_limit[0] = limits.total
        rows = zip(self.memory, limits.rows, self._next_rows, strict=True)
        for worker, (memory, limit, next_row) in enumerate(rows):
            # A worker that finishes a row also writes the next observation, possibly over the first
            # row that the learner has not taken.
            is_within = next_row % num_steps > 0
            # Only schedule `barrier` reads it. There the limit is the end of a slot.
            memory.words[GRANTS + memory.slot_and_step(limit - 1)[0]] = newest
            memory.words[TAKEN] = next_row
            memory.words[LIMIT] = min(limit, next_row + NUM_SLOTS * num_steps - is_within)
            if memory.words[WAITING]:
                self._supervisor.nudge(worker)

    def finished_rows(self) -> list[int]:
        """Return the row of each worker after the last evaluated one."""
        return [memory.words[DONE] for memory in self.memory]

    def collected_rows(self, *, is_over: bool) -> list[int]:
        """Return the row of each worker after the last stepped or begun one."""
        word = BEGUN if is_over else STEPPED
        return [memory.words[word] for memory in self.memory]

    def version(self, worker: int, row: int) -> int:
        """Return the version of a row."""
        memory = self.memory[worker]
        slot_index, t = memory.slot_and_step(row)
        return int(memory.versions[slot_index][t])

    def oldest_version(self, worker: int, row: int) -> int | None:
        """Return the version of row `row` if it was begun, or of the rows in progress."""
        words = self.memory[worker].words
        version = words[ACTING] if words[ACTING] >= 0 else None
        if words[BEGUN] > row:
            row_version = self.version(worker, row)
            version = row_version if version is None else min(version, row_version)
        return version

    def read(self, worker: int, start: int, stop: int) -> WorkerRows:
        """Return copies of rows. After the next `grant`, the worker may overwrite the originals."""
        memory = self.memory[worker]
        self._next_rows[worker] = stop
        return WorkerRows(*memory.copy(start, stop), memory.read_info)

    def poll(self) -> None:
        """Read the messages of the workers, and replace dead and stalled workers."""
        self._shared.wake_target[0] = NO_WAKE_TARGET
        self._supervisor.poll(0.0)

    def wait(self, num_rows: int) -> None:
        """Wait until a worker wakes this process, at most for a short interval."""
        self._shared.wake_target[0] = num_rows
        is_reached = sum(self.finished_rows()) >= num_rows > 0  # before the target was set
        self._supervisor.poll(0.0 if is_reached else _POLL_S)

    def recordings(self) -> Sequence[Recording]:
        """See `Transport.recordings`."""
        return recordings_of_this_run(self._supervisor.greeting.timing_dir)

    def node(self, worker: int) -> str:
        """Return an empty string: all workers run on this machine."""
        return ""

    def release(self) -> None:
        """Release the shared memory."""
        os.close(self._fd)
        # Free the memory now: the pool and this object form a reference cycle.
        self.memory = []
        del self._shared

    # --- calls of the supervisor: see `WorkerSupervisor` -----------------------------------------

    def set_up(self, worker: WorkerProcess) -> None:
        """Send the collection settings and the first row to a process that is ready."""
        if worker.is_set_up:
            return
        worker.is_set_up = True
        self.send_setup(worker)
        for follower, _ in self.followers:
            follower.send_setup(worker)

    def send_setup(self, worker: WorkerProcess) -> None:
        """Send the settings of this policy."""
        network, exploration = self._policy.network, self._policy.exploration
        exploration_fields = None if exploration is None else exploration.to_json()
        sizes = {"num_steps": self._options.num_steps, "num_workers": self.num_workers}
        if worker.number == INFERENCE:
            worker.first_row = self._shared.num_answers[0]
            inference_setup = InferenceSetup(
                network=network.to_json(),
                exploration=exploration_fields,
                num_envs=self.envs_per_worker,
                seed=self._options.seed,
                **sizes,
            )
            with contextlib.suppress(ChannelClosed):  # `poll` detects its end
                worker.channel.send(inference_setup, fd=self._fd)
            return
        worker.first_row = self.memory[worker.number].words[STEPPED]
        start = self._fleet.start_of(worker.number, worker.first_row)
        acts = self._supervisor.inference is None
        setup = Setup(
            network=network.to_json() if acts else None,
            outputs=NetworkOutline.to_json(network),
            exploration=exploration_fields if acts else None,
            has_episode_noise=isinstance(exploration, EpisodeNoise),
            schedule=self._options.schedule,
            in_fragments=self._takes_fragments,
            seed=self._options.seed,
            first_row=start.row,
            first_episode=start.first_episode,
            resume=start.resume,
            **sizes,
        )
        arrays = None if start.resume is None else start.arrays
        with contextlib.suppress(ChannelClosed):  # `poll` detects its end
            worker.channel.send(setup, arrays=arrays, fd=self._fd)

    def on_resumed(self, number: int, envs: Sequence[int], obs: Array, policy: int = 0) -> None:
        """Report that a worker, or its replacement, has restored all environments but `envs`."""
        fleets = [self._fleet, *(follower for _, follower in self.followers)]
        fleets[policy].on_resumed(number, envs, obs)

    def on_worker_lost(self, number: int, reason: str, traceback: str) -> int | None:
        """Drop the unfinished row of a dead process, and return the next one's first episode."""
        # The first policy's row is stepped last.
        row = self.memory[number].words[STEPPED]
        transports = [self, *(follower for follower, _ in self.followers)]
        episode = 1 + max(transport.memory[number].words[EPISODE] for transport in transports)
        for follower, fleet in self.followers:
            fleet.cut(number, row, follower.rewind(number, row), episode)
        num_lost = self.rewind(number, row)
        start = self._fleet.on_lost(number, row, num_lost, episode, reason, traceback)
        return start.first_episode

    def rewind(self, number: int, row: int) -> int:
        """Set the counters of a dead process to its last row, and return the lost rows."""
        memory = self.memory[number]
        words = memory.words
        num_lost = words[BEGUN] - row
        words[BEGUN] = words[STEPPED] = row
        words[ACTING] = -1
        words[STARTED] = words[WAITING] = words[EVALUATING] = 0
        if row > self._next_rows[number]:
            # Evaluation must see that the next row belongs to another episode.
            slot_index, t = memory.slot_and_step(row - 1)
            fragment = memory.slots[slot_index].fragment
            fragment.truncated[t] |= ~fragment.terminated[t]
        return num_lost

    def activity(self, worker: WorkerProcess) -> Activity | None:
        """Return the activity of a process that is ready. None if it is idle."""
        if not worker.is_set_up:
            return None
        is_pending = self._shared.requests[..., SERIAL] != self._shared.answers[..., SERIAL]
        if worker.number == INFERENCE:
            if not is_pending.any():
                return None
            progress = self._shared.num_answers[0]
            # The first answer may import torch.
            is_long = progress == worker.first_row or bool(is_pending[:, EVALUATION].any())
            return Activity((progress,), "while it acted", may_take_long=is_long)
        words = self.memory[worker.number].words
        num_rows = self._shared.rows_allowed(worker.number, has_total_limit=self._has_total_limit)
        if words[WAITING] and num_rows <= 0:
            return None
        progress = tuple(words[BEGUN:])
        if words[STARTED]:
            return Activity(progress, IN_A_STEP)
        if is_pending[worker.number].any():
            return None  # waiting for the inference process
        if words[EVALUATING]:
            return Activity(progress, "while it evaluated rows", may_take_long=True)
        if words[BEGUN] == worker.first_row:
            return Activity(progress, "before its first step", may_take_long=True)
        return Activity(progress, "before it continued" if words[WAITING] else "between two steps")


class FollowingTransport(ProcessTransport):
    """The rows of a policy that acts within the steps of another one; see `ProcessTransport`.

    The other policy's transport, the leader, starts and watches the workers, and sets their limits.
    The last policy's rows are finished first, and those of the leader last.
    """

    def start(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Set the counters to the first rows. The leader then sends the settings."""
        self.begin(fleet, first_rows)

    def grant(self, limits: RowLimits) -> None:
        """Do nothing: the leader's limits are those of all policies."""
