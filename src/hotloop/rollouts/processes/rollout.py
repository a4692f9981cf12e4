"""Rollouts by workers that do not synchronize with each other.

A worker steps its environments, acts in them, and writes rows in place into its part of the shared
memory. The word `LIMIT` bounds its rows, and other words count them. Only two things wait: a worker
that is two fragments ahead of the learner, and a learner without enough rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop import timing
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting, WorkerAccount, time_shares
from hotloop.rollouts.processes.channel import ChannelClosed
from hotloop.rollouts.processes.groups import WorkerGroup
from hotloop.rollouts.processes.messages import INFERENCE, InferenceSetup, Setup
from hotloop.rollouts.processes.process import IN_A_STEP, Activity, WorkerProcess
from hotloop.rollouts.processes.schedules import POLL_S, SCHEDULES, WorkerProgress
from hotloop.rollouts.processes.shared_memory import (
    ACTING,
    BEGUN,
    DONE,
    EPISODE,
    EVALUATING,
    EVALUATION,
    LIMIT,
    SERIAL,
    STARTED,
    STEPPED,
    WAITING,
    NetworkOutline,
    create_shared_memory,
)
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.timing import span
from hotloop.types import Array, Episode, Fragment


class ProcessRollout:
    """Collects fragments with the workers of a pool.

    Args:
        supervisor: Supervisor of the workers.
        policy: Acting policy. Its parameters are published to the workers.
        options: Collection options.
        close: Ends the workers.

    Attributes:
        num_transitions: Transitions returned so far, over all environments.
    """

    def __init__(
        self,
        supervisor: WorkerSupervisor,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        close: Callable[[], None],
    ) -> None:
        self.policy = policy
        self.num_transitions = 0
        self._supervisor = supervisor
        self._close = close
        self._options = options
        self._schedule = SCHEDULES[options.schedule]
        # Schedule `variable` takes rows in unequal shares.
        self._takes_fragments = options.schedule == "barrier" or (
            options.schedule == "async" and options.in_fragments
        )
        self._num_envs = supervisor.greeting.num_envs
        self._can_replay = supervisor.ready.can_replay
        num_workers = len(supervisor.workers)
        self._fd, self._shared = create_shared_memory(
            policy.network,
            num_steps=options.num_steps,
            num_workers=num_workers,
            num_envs=self._num_envs,
        )
        self._memory = self._shared.workers
        self._published_params: dict[str, Array] | None = None
        action = self._memory[0].slots[0].fragment.action
        self._groups = [
            WorkerGroup(
                worker * self._num_envs,
                self._num_envs,
                options.num_steps,
                action,
                can_replay=self._can_replay,
            )
            for worker in range(num_workers)
        ]
        self._progress = WorkerProgress(supervisor, self._shared, self._groups, options, self._drop)
        self._restored: tuple[Mapping[str, Array], RolloutPosition] | None = None
        # For each worker that has restored its environments: the environments that it could not.
        self._restarted_envs: list[Sequence[int] | None] = [None] * num_workers
        self._is_set_up = self._has_ended = False
        self._episodes: list[Episode] = []
        self._lost: Counter[str] = Counter()  # steps that were begun and not finished
        self._dropped: Counter[str] = Counter()
        self._num_trained = 0
        self._ages = [0, 0, 0]  # rows, sum of their policy ages, maximum age
        self._final_accounting: Accounting | None = None
        self.publish(policy.snapshot)

    # --- protocol ---------------------------------------------------------------------------------

    @property
    def last_failure(self) -> str:
        """See `Rollout.last_failure`."""
        return self._supervisor.failures.last_failure

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`."""
        if self._final_accounting is None:  # otherwise the workers have ended
            self._shared.weights.write(snapshot)
            self._progress.version = snapshot.version
        if snapshot.params is self._published_params and snapshot.obs_scale is None:
            self.policy.refresh(snapshot.version)
        else:
            self.policy.load(snapshot)
            self._published_params = snapshot.params

    def collect(self) -> list[Fragment]:
        """Return copies of the next fragments; see `Rollout.collect`.

        Raises:
            EnvironmentFailure: Environments or workers failed too often.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        self._set_up()
        shares = self._schedule.take(self._progress)
        with span("copy", kind="transfer"):
            fragments = [self._take(worker, rows) for worker, rows in enumerate(shares) if rows]
        if self._schedule.runs_free or self._options.overlap:
            self._schedule.grant(self._progress)
        return fragments

    def updates_allowed(self) -> int | None:
        """See `Rollout.updates_allowed`."""
        if not self._schedule.runs_free:
            return None
        return self._progress.updates_until_too_old([group.next_row for group in self._groups])

    def watch(self) -> None:
        """See `Rollout.watch`."""
        self._supervisor.poll(0.0)

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        states = [group.state() for group in self._groups]
        groups = [state for state in states if state is not None]
        if len(groups) < len(states):
            # Without the first row of every worker a resumed run starts new episodes.
            return RolloutState(num_transitions=self.num_transitions)
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.episodes:
            return []
        # Kept for a worker that dies before its first row and must be restored again.
        stored = {name: x for name, x in arrays.items() if name.startswith(("actions.", "memory."))}
        self._restored = stored, position
        for group, vector_steps in zip(self._groups, position.vector_steps, strict=True):
            group.first_row = group.next_row = vector_steps
        self._set_up()
        restarted_envs: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker in range(len(self._groups)):
                while (restarted := self._restarted_envs[worker]) is None:
                    self._supervisor.poll(POLL_S)
                restarted_envs += [worker * self._num_envs + i for i in restarted]
        return restarted_envs

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        if self._final_accounting is not None:
            return self._final_accounting
        return self._make_accounting(is_over=False, with_workers=with_workers)

    def close(self) -> None:
        """See `Rollout.close`."""
        self._close()

    # --- calls of the supervisor: see `SupervisedRollout` -----------------------------------------

    def set_up(self, worker: WorkerProcess) -> None:
        """Send the collection settings and the first row to a process that is ready."""
        if not self._is_set_up or worker.is_set_up:
            return
        worker.is_set_up = True
        network, exploration = self.policy.network, self.policy.exploration
        exploration_fields = None if exploration is None else dataclasses.asdict(exploration)
        sizes = {"num_steps": self._options.num_steps, "num_workers": len(self._groups)}
        if worker.number == INFERENCE:
            worker.first_row = self._shared.num_answers[0]
            inference_setup = InferenceSetup(
                network=network.to_json(),
                exploration=exploration_fields,
                num_envs=self._num_envs,
                seed=self._options.seed,
                **sizes,
            )
            with contextlib.suppress(ChannelClosed):  # `poll` detects its end
                worker.channel.send(inference_setup, fd=self._fd)
            return
        # Let a worker resume another run's episodes until it has written a row.
        words, group = self._memory[worker.number].words, self._groups[worker.number]
        worker.first_row = words[STEPPED]
        resume: list[tuple[int, str]] | None = None
        arrays: dict[str, Array] | None = None
        if self._restored is not None and words[STEPPED] == group.first_row:
            stored, position = self._restored
            first_env = worker.number * self._num_envs
            env_numbers = range(first_env, first_env + self._num_envs)
            resume = [position.episodes[i] for i in env_numbers]
            arrays = {
                f"{kind}.{k}": stored[f"{kind}.{i}"]
                for k, i in enumerate(env_numbers)
                for kind in ("actions", "memory")
                if f"{kind}.{i}" in stored
            }
        setup = Setup(
            network=network.to_json() if self._supervisor.inference is None else None,
            outputs=NetworkOutline.to_json(network),
            exploration=exploration_fields,
            schedule=self._options.schedule,
            in_fragments=self._takes_fragments,
            seed=self._options.seed,
            first_row=words[STEPPED],
            first_episode=group.cuts.get(words[STEPPED]),
            resume=resume,
            **sizes,
        )
        with contextlib.suppress(ChannelClosed):  # `poll` detects its end
            worker.channel.send(setup, arrays=arrays, fd=self._fd)

    def on_resumed(self, number: int, envs: Sequence[int], obs: Array) -> None:
        """Record that a worker, or its replacement, has restored all environments but `envs`."""
        assert self._restored is not None
        self._restarted_envs[number] = envs
        self._groups[number].resume(*self._restored, envs, obs)

    def on_worker_lost(self, number: int) -> None:
        """Drop the unfinished rows of a dead process, and mark the first row of the next one."""
        memory, group = self._memory[number], self._groups[number]
        words = memory.words
        row = words[STEPPED]
        self._lost["worker died"] += self._num_envs * (words[BEGUN] - row)
        words[BEGUN], words[ACTING] = row, -1
        words[STARTED] = words[WAITING] = words[EVALUATING] = 0
        if row > group.first_row:
            group.cuts[row] = words[EPISODE] + 1
        if row > group.next_row:
            # Evaluation must see that the next row belongs to another episode.
            slot_index, t = memory.slot_and_step(row - 1)
            fragment = memory.slots[slot_index].fragment
            fragment.truncated[t] |= ~fragment.terminated[t]

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
        words = self._memory[worker.number].words
        has_total_limit = self._options.schedule == "variable"
        num_rows = self._shared.rows_allowed(worker.number, has_total_limit=has_total_limit)
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

    # --- calls of the pool ------------------------------------------------------------------------

    def end(self) -> None:
        """Refuse further collection."""
        self._has_ended = True

    def store_accounting(self) -> None:
        """Store the final accounting of ended workers, and release the shared memory."""
        if self._final_accounting is None:
            self._final_accounting = self._make_accounting(is_over=True)
            os.close(self._fd)
            # Free the memory now: the pool and this object form a reference cycle.
            self._memory = []
            del self._shared, self._progress

    def _set_up(self) -> None:
        if self._has_ended:
            raise EnvironmentFailure("this rollout is closed: create a new one")
        if self._is_set_up:
            return
        self._is_set_up = True
        for memory, group in zip(self._memory, self._groups, strict=True):
            for word in (BEGUN, STEPPED, DONE, LIMIT):
                memory.words[word] = group.first_row
            memory.words[ACTING] = -1
        if self._schedule.runs_free:
            self._schedule.grant(self._progress)
        if self._supervisor.inference is not None:
            self.set_up(self._supervisor.inference)
        for worker in self._supervisor.workers:
            self.set_up(worker)

    def _take(self, worker: int, num_rows: int) -> Fragment:
        """Take the next rows of a worker for training."""
        fragment, versions, num_valid = self._copy_rows(worker, num_rows)
        self.num_transitions += num_valid
        self._num_trained += num_valid
        self._ages[0] += num_rows
        version = self._progress.version
        self._ages[1] += version * num_rows - int(versions.sum())
        self._ages[2] = max(self._ages[2], version - fragment.policy_version)
        return fragment

    def _drop(self, worker: int, num_rows: int) -> None:
        """Take the next rows of a worker without training on them. Their episodes count."""
        _, _, num_valid = self._copy_rows(worker, num_rows)
        self._dropped["too old"] += num_valid

    def _copy_rows(self, worker: int, num_rows: int) -> tuple[Fragment, Array, int]:
        """Release a worker's next rows, and return a copy, their versions and their valid count."""
        memory, group = self._memory[worker], self._groups[worker]
        fragment, versions, episodes = memory.copy(group.next_row, group.next_row + num_rows)
        size, num_valid = fragment.valid.size, int(np.count_nonzero(fragment.valid))
        self._episodes += group.take(fragment, episodes, memory.read_info)
        if num_valid < size:
            reason = "environment failed" if self._can_replay else "reset"
            self._dropped[reason] += size - num_valid
        return fragment, versions, num_valid

    def _make_accounting(self, *, is_over: bool, with_workers: bool = True) -> Accounting:
        num_taken = sum(g.next_row - g.first_row for g in self._groups)
        # Read once per worker, because it grows.
        num_ready = sum(m.words[STEPPED] - g.next_row for m, g in self._pairs() if self._is_set_up)
        num_cut = sum(m.words[BEGUN] - m.words[STEPPED] for m, _ in self._pairs()) if is_over else 0
        num_lost = sum(self._lost.values())
        collected = self._num_envs * (num_taken + num_ready + num_cut) + num_lost
        dropped = self._dropped + self._lost
        in_flight = self._num_envs * (num_ready + num_cut)
        if is_over and in_flight:
            dropped["run ended"], in_flight = in_flight, 0
        num_rows, age_sum, max_age = self._ages
        return Accounting(
            collected=collected,
            trained=self._num_trained,
            dropped=dict(dropped),
            in_flight=in_flight,
            policy_age=(age_sum / num_rows if num_rows else 0.0, max_age),
            workers=self._worker_accounts() if with_workers else (),
        )

    def _pairs(self) -> Any:
        return zip(self._memory, self._groups, strict=True)

    def _worker_accounts(self) -> list[WorkerAccount]:
        recordings, _ = timing.read_directory(Path(self._supervisor.greeting.timing_dir))
        accounts: list[WorkerAccount] = []
        for worker, (memory, group) in enumerate(self._pairs()):
            trees = [
                recording.tree()
                for recording in recordings
                if recording.component == f"worker-{worker}" and recording.parent_pid == os.getpid()
            ]
            steps = memory.words[STEPPED] - group.first_row if self._is_set_up else 0
            accounts.append(
                WorkerAccount(
                    worker=worker,
                    steps=self._num_envs * steps,
                    restarts=self._supervisor.failures.restarts[worker],
                    env_failures=self._supervisor.failures.env_failures[worker],
                    node="",
                    **time_shares(timing.merge(trees)),
                )
            )
        return accounts
