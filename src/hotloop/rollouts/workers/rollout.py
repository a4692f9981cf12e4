"""Rollouts by workers that never wait for each other.

A worker steps its environments and acts in them by itself, and writes rows in place into its part
of the shared memory. How far it may go is one word there (`LIMIT`); how far it has come are others.
So nobody waits but who has nowhere to go: a worker two fragments ahead of what was taken, or the
learner while there is not enough to take.
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
from hotloop.rollouts.accounting import Accounting, WorkerAccount, shares_of
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.rollouts.workers.channel import Closed
from hotloop.rollouts.workers.groups import Group
from hotloop.rollouts.workers.messages import INFERENCE, InferenceSetup, Setup
from hotloop.rollouts.workers.process import IN_A_STEP, Standing, WorkerProcess
from hotloop.rollouts.workers.schedules import LOOK_S, SCHEDULES, Progress
from hotloop.rollouts.workers.shared_memory import (
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
    Outputs,
    create,
)
from hotloop.rollouts.workers.supervisor import Supervisor
from hotloop.timing import span
from hotloop.types import Array, Episode, Fragment


class ProcessRollout:
    """Collects by the workers of a pool.

    Args:
        supervisor: of the workers.
        policy: what acts; its parameters are published to the workers.
        plan: how.
        close: ends the workers.

    Attributes:
        num_transitions: handed over so far, over all environments.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        policy: ActingPolicy,
        plan: CollectionOptions,
        *,
        close: Callable[[], None],
    ) -> None:
        self.policy = policy
        self.num_transitions = 0
        self._supervisor = supervisor
        self._close = close
        self._plan = plan
        self._way = SCHEDULES[plan.schedule]
        # variable shares out rows.
        self._takes_fragments = plan.schedule == "barrier" or (
            plan.schedule == "async" and plan.in_fragments
        )
        self._num_envs = supervisor.greeting.num_envs
        self._can_replay = supervisor.ready.can_replay
        num_workers = len(supervisor.workers)
        self._fd, self._shared = create(
            policy.network,
            num_steps=plan.num_steps,
            num_workers=num_workers,
            num_envs=self._num_envs,
        )
        self._memory = self._shared.workers
        self._published: dict[str, Array] | None = None
        action = self._memory[0].slots[0].fragment.action
        self._groups = [
            Group(
                worker * self._num_envs,
                self._num_envs,
                plan.num_steps,
                action,
                can_replay=self._can_replay,
            )
            for worker in range(num_workers)
        ]
        self._progress = Progress(supervisor, self._shared, self._groups, plan, self._drop_too_old)
        self._resume: tuple[Mapping[str, Array], RolloutPosition] | None = None
        # Of each worker that was brought there: the environments that were not.
        self._restarted: list[Sequence[int] | None] = [None] * num_workers
        self._is_set_up = self._has_ended = False
        self._episodes: list[Episode] = []
        self._lost: Counter[str] = Counter()  # steps begun that came to no end
        self._dropped: Counter[str] = Counter()
        self._trained = 0
        self._ages = [0, 0, 0]  # rows, their versions' ages summed, the greatest
        self._account: Accounting | None = None
        self.publish(policy.snapshot)

    # --- the protocol -----------------------------------------------------------------------------

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`."""
        if self._account is None:  # else there is nobody left
            self._shared.weights.write(snapshot)
            self._progress.version = snapshot.version
        if snapshot.params is self._published and snapshot.obs_scale is None:
            self.policy.refresh(snapshot.version)
        else:
            self.policy.load(snapshot)
            self._published = snapshot.params

    def collect(self) -> list[Fragment]:
        """See `Rollout.collect`: copies, which later calls leave alone.

        Raises:
            EnvironmentFailure: environments or workers failed too often.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        self._set_up()
        shares = self._way.take(self._progress)
        with span("copy", kind="transfer"):
            fragments = [self._take(worker, rows) for worker, rows in enumerate(shares) if rows]
        if self._way.runs_free or self._plan.overlap:
            self._way.grant(self._progress)
        return fragments

    def updates_allowed(self) -> int | None:
        """See `Rollout.updates_allowed`."""
        if not self._way.runs_free:
            return None
        return self._progress.updates_until_too_old([group.taken for group in self._groups])

    def watch(self) -> None:
        """See `Rollout.watch`."""
        self._supervisor.look(0.0)

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        states = [group.state() for group in self._groups]
        groups = [state for state in states if state is not None]
        if len(groups) < len(states):
            # Somebody has not given its first row yet: who goes on from here begins anew.
            return RolloutState(num_transitions=self.num_transitions)
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.episodes:
            return []
        # Kept: who dies before the first row is brought there again.
        own = {name: x for name, x in arrays.items() if name.startswith(("actions.", "memory."))}
        self._resume = own, position
        for group, vector_steps in zip(self._groups, position.vector_steps, strict=True):
            group.first_row = group.taken = vector_steps
        self._set_up()
        restarted_envs: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker in range(len(self._groups)):
                while (restarted := self._restarted[worker]) is None:
                    self._supervisor.look(LOOK_S)
                restarted_envs += [worker * self._num_envs + i for i in restarted]
        return restarted_envs

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        if self._account is not None:
            return self._account
        return self._count(is_over=False, with_workers=with_workers)

    def close(self) -> None:
        """See `Rollout.close`."""
        self._close()

    # --- what the supervisor calls: see `Collecting` ----------------------------------------------

    def set_up(self, worker: WorkerProcess) -> None:
        """Tell a process that is ready what to collect, and from which row on."""
        if not self._is_set_up or worker.is_set_up:
            return
        worker.is_set_up = True
        network, exploration = self.policy.network, self.policy.exploration
        explores = None if exploration is None else dataclasses.asdict(exploration)
        sizes = {"num_steps": self._plan.num_steps, "num_workers": len(self._groups)}
        if worker.number == INFERENCE:
            worker.first_row = self._shared.progress[0]
            told = InferenceSetup(
                network=network.to_json(),
                exploration=explores,
                num_envs=self._num_envs,
                seed=self._plan.seed,
                **sizes,
            )
            with contextlib.suppress(Closed):  # its end is heard of elsewhere
                worker.channel.send(told, fd=self._fd)
            return
        words, group = self._memory[worker.number].words, self._groups[worker.number]
        worker.first_row = words[STEPPED]
        resume: list[tuple[int, str]] | None = None
        arrays: dict[str, Array] | None = None
        if self._resume is not None and words[STEPPED] == group.first_row:
            stored, position = self._resume
            first = worker.number * self._num_envs
            numbers = range(first, first + self._num_envs)
            resume = [position.episodes[i] for i in numbers]
            arrays = {
                f"{what}.{k}": stored[f"{what}.{i}"]
                for k, i in enumerate(numbers)
                for what in ("actions", "memory")
                if f"{what}.{i}" in stored
            }
        setup = Setup(
            network=network.to_json() if self._supervisor.inference is None else None,
            outputs=Outputs.to_json(network),
            exploration=explores,
            schedule=self._plan.schedule,
            in_fragments=self._takes_fragments,
            seed=self._plan.seed,
            first_row=words[STEPPED],
            first_episode=group.cuts.get(words[STEPPED]),
            resume=resume,
            **sizes,
        )
        with contextlib.suppress(Closed):  # its end is heard of elsewhere
            worker.channel.send(setup, arrays=arrays, fd=self._fd)

    def restarted_envs(self, number: int, envs: Sequence[int], obs: Array) -> None:
        """A worker was brought to where another run stood, but for these environments.

        Again, where its process was replaced before its first row.
        """
        assert self._resume is not None
        self._restarted[number] = envs
        self._groups[number].resume(*self._resume, envs, obs)

    def lost(self, number: int) -> None:
        """A worker's process is gone: what it had not finished is dropped, and where the one that
        follows begins is marked."""
        memory, group = self._memory[number], self._groups[number]
        words = memory.words
        row = words[STEPPED]
        self._lost["worker died"] += self._num_envs * (words[BEGUN] - row)
        words[BEGUN], words[ACTING] = row, -1
        words[STARTED] = words[WAITING] = words[EVALUATING] = 0
        if row > group.first_row:
            group.cuts[row] = words[EPISODE] + 1
        if row > group.taken:
            # Who evaluates it must know that what follows is another episode.
            which, t = memory.place(row - 1)
            fragment = memory.slots[which].fragment
            fragment.truncated[t] |= ~fragment.terminated[t]

    def standing(self, worker: WorkerProcess) -> Standing | None:
        """Where a process stands that is ready; None: it waits, and has nothing to do."""
        if not worker.is_set_up:
            return None
        asked = self._shared.requests[..., SERIAL] != self._shared.answers[..., SERIAL]
        if worker.number == INFERENCE:
            if not asked.any():
                return None
            progress = self._shared.progress[0]
            # For its first answer it may import torch.
            is_long = progress == worker.first_row or bool(asked[:, EVALUATION].any())
            return Standing((progress,), "while it acted", may_be_long=is_long)
        words = self._memory[worker.number].words
        is_shared_out = self._plan.schedule == "variable"
        room = self._shared.room(worker.number, is_shared_out=is_shared_out)
        if words[WAITING] and room <= 0:
            return None
        progress = tuple(words[BEGUN:])
        if words[STARTED]:
            return Standing(progress, IN_A_STEP)
        if asked[worker.number].any():
            return None  # it may wait for the inference process
        if words[EVALUATING]:
            return Standing(progress, "while it evaluated rows", may_be_long=True)
        if words[BEGUN] == worker.first_row:
            return Standing(progress, "before its first step", may_be_long=True)
        return Standing(progress, "when it was to go on" if words[WAITING] else "between two steps")

    # --- what the pool calls ----------------------------------------------------------------------

    def end(self) -> None:
        """No more is collected."""
        self._has_ended = True

    def keep_account(self) -> None:
        """All workers have ended: what there is to know of them is kept, their memory is not."""
        if self._account is None:
            self._account = self._count(is_over=True)
            os.close(self._fd)
            # The pool and this know each other: the memory shall not wait for them to be found.
            self._memory = []
            del self._shared, self._progress

    # --- taking rows ------------------------------------------------------------------------------

    def _set_up(self) -> None:
        if self._has_ended:
            raise EnvironmentFailure("this rollout is closed: make a new one")
        if self._is_set_up:
            return
        self._is_set_up = True
        for memory, group in zip(self._memory, self._groups, strict=True):
            for word in (BEGUN, STEPPED, DONE, LIMIT):
                memory.words[word] = group.first_row
            memory.words[ACTING] = -1
        if self._way.runs_free:
            self._way.grant(self._progress)
        if self._supervisor.inference is not None:
            self.set_up(self._supervisor.inference)
        for worker in self._supervisor.workers:
            self.set_up(worker)

    def _take(self, worker: int, num_rows: int) -> Fragment:
        """Copy the next rows of a worker, and say that their places are free."""
        fragment, versions, num_valid = self._free(worker, num_rows)
        self.num_transitions += num_valid
        self._trained += num_valid
        self._ages[0] += num_rows
        version = self._progress.version
        self._ages[1] += version * num_rows - int(versions.sum())
        self._ages[2] = max(self._ages[2], version - fragment.policy_version)
        return fragment

    def _drop_too_old(self, worker: int, num_rows: int) -> None:
        """Take the next rows of a worker, which nobody learns from; their episodes count."""
        _, _, num_valid = self._free(worker, num_rows)
        self._dropped["too old"] += num_valid

    def _free(self, worker: int, num_rows: int) -> tuple[Fragment, Array, int]:
        """Copy the next rows of a worker: with the versions that acted, and how many are valid."""
        memory, group = self._memory[worker], self._groups[worker]
        fragment, versions, episodes = memory.copy(group.taken, group.taken + num_rows)
        size, num_valid = fragment.valid.size, int(np.count_nonzero(fragment.valid))
        self._episodes += group.take(fragment, episodes, memory.read_info)
        if num_valid < size:
            reason = "environment failed" if self._can_replay else "reset"
            self._dropped[reason] += size - num_valid
        return fragment, versions, num_valid

    # --- accounting -------------------------------------------------------------------------------

    def _count(self, *, is_over: bool, with_workers: bool = True) -> Accounting:
        taken = sum(g.taken - g.first_row for g in self._groups)
        # Looked at once: it grows.
        not_taken = sum(m.words[STEPPED] - g.taken for m, g in self._each() if self._is_set_up)
        begun = sum(m.words[BEGUN] - m.words[STEPPED] for m, _ in self._each()) if is_over else 0
        lost = sum(self._lost.values())
        collected = self._num_envs * (taken + not_taken + begun) + lost
        dropped = self._dropped + self._lost
        in_flight = self._num_envs * (not_taken + begun)
        if is_over and in_flight:
            dropped["run ended"], in_flight = in_flight, 0
        rows, ages, greatest = self._ages
        return Accounting(
            collected=collected,
            trained=self._trained,
            dropped=dict(dropped),
            in_flight=in_flight,
            policy_age=(ages / rows if rows else 0.0, greatest),
            workers=self._worker_accounts() if with_workers else (),
        )

    def _each(self) -> Any:
        return zip(self._memory, self._groups, strict=True)

    def _worker_accounts(self) -> list[WorkerAccount]:
        recordings, _ = timing.read_directory(Path(self._supervisor.greeting.timing_dir))
        accounts: list[WorkerAccount] = []
        for worker, (memory, group) in enumerate(self._each()):
            own = [
                recording.tree()
                for recording in recordings
                if recording.component == f"worker-{worker}" and recording.parent_pid == os.getpid()
            ]
            steps = memory.words[STEPPED] - group.first_row if self._is_set_up else 0
            accounts.append(
                WorkerAccount(
                    worker=worker,
                    steps=self._num_envs * steps,
                    restarts=self._supervisor.restarts[worker],
                    env_failures=self._supervisor.env_failures[worker],
                    node="",
                    **shares_of(timing.merge(own)),
                )
            )
        return accounts
