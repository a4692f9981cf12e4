"""Rollouts by Ray actors: schedules, collected parts and accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotloop import timing
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting, WorkerAccount, time_shares
from hotloop.rollouts.collector import Slot
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import FragmentPart, join_parts
from hotloop.rollouts.ray.cluster import check_store
from hotloop.rollouts.ray.group import MAX_AHEAD, ActorGroup
from hotloop.rollouts.ray.supervisor import ActorSupervisor
from hotloop.rollouts.schedules import fair_shares
from hotloop.rollouts.state import GroupState, RolloutPosition, RolloutState
from hotloop.timing import span
from hotloop.types import PER_STEP, Array, Episode, Fragment

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments

# Maximum parts of a fragment for schedule `variable`, whose workers may supply unequal numbers.
_PARTS = 8


class RayRollout:
    """Collects with actors, which work on the next parts while the learner learns; see `Rollout`.

    A part is a whole fragment, or an eighth of one for schedule `variable`. The actor uses the
    weights that were the newest at the time of the request.

    Args:
        envs: Environments of the actors.
        policy: Acting policy. Its parameters are published to the actors.
        options: Collection options.

    Attributes:
        num_transitions: Transitions returned so far, over all environments.
    """

    def __init__(
        self, envs: RayEnvironments, policy: ActingPolicy, options: CollectionOptions
    ) -> None:
        self.policy = policy
        self.num_transitions = 0
        self._envs, self._options = envs, options
        self._num_rows = options.num_steps
        if options.schedule == "variable":
            parts = next(k for k in range(_PARTS, 0, -1) if options.num_steps % k == 0)
            self._num_rows //= parts
        example = Slot.allocate(self._num_rows, envs.envs_per_worker, policy.network).fragment
        ahead = options.num_steps // self._num_rows * MAX_AHEAD
        if options.schedule == "barrier":
            ahead = 1 + int(options.overlap)
        check_store(
            envs.ray,
            ahead * envs.num_workers,
            sum(getattr(example, name).nbytes for name in PER_STEP),
            sum(array.nbytes for array in policy.snapshot.params.values()),
        )
        self._groups = [
            ActorGroup(envs.envs_per_worker, envs.first_episode, self._num_rows, example.action)
            for _ in range(envs.num_workers)
        ]
        self._supervisor = ActorSupervisor(
            envs, policy, self._groups, num_rows=self._num_rows, seed=options.seed
        )
        self._published_params: dict[str, Array] | None = None
        self._episodes: list[Episode] = []
        self._num_trained = 0
        self._ages = [0, 0, 0]  # rows, sum of their policy ages, maximum age
        self._final_accounting: Accounting | None = None
        self.publish(policy.snapshot)

    # --- protocol ---------------------------------------------------------------------------------

    @property
    def last_failure(self) -> str:
        """See `Rollout.last_failure`."""
        return self._envs.failures.last_failure

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Publish one object in Ray's store for all actors; see `Rollout.publish`."""
        if self._final_accounting is None:
            self._supervisor.publish(snapshot)
        if snapshot.params is self._published_params and snapshot.obs_scale is None:
            self.policy.refresh(snapshot.version)
        else:
            self.policy.load(snapshot)
            self._published_params = snapshot.params

    def collect(self) -> list[Fragment]:
        """Return the next fragments; see `Rollout.collect`.

        Raises:
            EnvironmentFailure: Environments or actors failed too often.
            NonFiniteError: The policy's outputs were NaN or infinite.
            HotloopError: The cluster is gone, or its store has no room.
        """
        if self._final_accounting is not None:
            raise EnvironmentFailure("this rollout is closed: create a new one")
        self._supervisor.set_up()
        options = self._options
        if options.schedule == "barrier":
            fragments = self._take_fragments()
        elif options.schedule == "variable":
            fragments = self._take_total()
        else:
            fragments = self._take_ready() if options.in_fragments else self._take_all()
        return fragments

    def updates_allowed(self) -> int | None:
        """See `Rollout.updates_allowed`."""
        if self._options.schedule != "async":
            return None
        return max(0, self._options.max_policy_age - (self._supervisor.version - self._oldest()))

    def watch(self) -> None:
        """See `Rollout.watch`."""
        if self._supervisor.is_set_up and self._final_accounting is None:
            self._supervisor.poll(0.0)

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        if any(group.obs is None for group in self._groups):
            return RolloutState(num_transitions=self.num_transitions)
        groups = [
            GroupState(
                vector_steps=group.next_row,
                running=group.running,
                obs=group.obs,  # pyright: ignore[reportArgumentType]
                memory=group.memory,
                history=group.history.chunks(),
            )
            for group in self._groups
        ]
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.episodes:
            return []
        stored = {name: x for name, x in arrays.items() if name.startswith(("actions.", "memory."))}
        for group, vector_steps in zip(self._groups, position.vector_steps, strict=True):
            group.first_row = group.next_row = vector_steps
        return self._supervisor.set_up((stored, position))

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        if self._final_accounting is not None:
            return self._final_accounting
        return self._make_accounting(is_over=False, with_workers=with_workers)

    def close(self) -> None:
        """See `Rollout.close`."""
        self._envs.close()

    def store_accounting(self) -> None:
        """Store the final accounting before the actors end."""
        if self._final_accounting is None:
            self._final_accounting = self._make_accounting(is_over=True, with_workers=True)

    # --- schedules --------------------------------------------------------------------------------

    def _take_fragments(self) -> list[Fragment]:
        """Take T rows of every worker."""
        self._supervisor.request_parts(1)
        self._supervisor.wait(lambda: all(group.parts for group in self._groups))
        return self._take([1] * len(self._groups), ahead=int(self._options.overlap))

    def _take_total(self) -> list[Fragment]:
        """Take T × W rows in total, and at least one part of every worker."""
        parts_per_fragment = self._options.num_steps // self._num_rows
        total = parts_per_fragment * len(self._groups)

        def is_enough() -> bool:
            available = [len(group.parts) for group in self._groups]
            if sum(available) >= total and min(available) > 0:
                return True
            self._supervisor.request_parts(MAX_AHEAD * parts_per_fragment, limit=MAX_AHEAD)
            return False

        self._supervisor.wait(is_enough)
        shares = fair_shares([len(group.parts) for group in self._groups], total)
        return self._take(shares, ahead=MAX_AHEAD if self._options.overlap else 0)

    def _take_ready(self) -> list[Fragment]:
        """Take one fragment per worker on average, those of the oldest policies first."""
        # Wait for the fragments that would be too old in the next iteration, or take them now.
        self._supervisor.request_parts(MAX_AHEAD)
        groups = self._groups

        def choose_shares() -> list[int]:
            self._drop_old()
            ready = sorted(
                (part.version, n) for n, group in enumerate(groups) for part in group.parts
            )
            shares = [0] * len(groups)
            for _, worker in ready[: len(groups)]:
                shares[worker] += 1
            return shares

        def is_enough() -> bool:
            shares = choose_shares()
            if sum(shares) < len(groups):
                return False
            oldest_version = self._oldest(shares)
            return self._options.max_policy_age - (self._supervisor.version - oldest_version) > 0

        self._supervisor.wait(is_enough)
        return self._take(choose_shares(), ahead=MAX_AHEAD)

    def _take_all(self) -> list[Fragment]:
        """Take all parts, at least `minimum` transitions, and those that would become too old."""
        self._supervisor.request_parts(MAX_AHEAD)
        part_transitions = self._num_rows * self._envs.envs_per_worker
        max_parts = len(self._groups) * MAX_AHEAD
        min_parts = min(-(-self._options.min_transitions // part_transitions), max_parts)

        def is_enough() -> bool:
            self._drop_old()
            shares = [len(group.parts) for group in self._groups]
            if sum(shares) < min_parts:
                return False
            return (
                self._options.max_policy_age - (self._supervisor.version - self._oldest(shares)) > 0
            )

        self._supervisor.wait(is_enough)
        return self._take([len(group.parts) for group in self._groups], ahead=MAX_AHEAD)

    def _oldest(self, num_skipped: Sequence[int] | None = None) -> int:
        """Return the oldest version of parts and requests, but for some parts of each worker."""
        # Requests to a silent actor are ignored. Its parts are dropped if they are too old.
        oldest_version = self._supervisor.version
        for worker, group in enumerate(self._groups):
            num_worker_skipped = 0 if num_skipped is None else num_skipped[worker]
            versions = [part.version for part in group.parts]
            if group.silent_since_s is None:
                versions += [request.version for request in group.requests]
            oldest_version = min([oldest_version, *versions[num_worker_skipped:]])
        return oldest_version

    def _take(self, shares: Sequence[int], *, ahead: int) -> list[Fragment]:
        """Take a number of parts of each worker, and request the next ones."""
        fragments: list[Fragment] = []
        with span("copy", kind="transfer"):
            for worker, count in enumerate(shares):
                if count:
                    parts = [self._groups[worker].parts.popleft() for _ in range(count)]
                    fragments.append(self._join_parts(worker, parts))
        if ahead:
            self._supervisor.request_parts(ahead)
        return fragments

    def _drop_old(self) -> None:
        """Drop parts that are too old, from actors that did not answer."""
        supervisor = self._supervisor
        for worker, group in enumerate(self._groups):
            while (
                group.parts
                and supervisor.version - group.parts[0].version > self._options.max_policy_age
            ):
                part = group.parts.popleft()
                self._update_episodes(worker, part)
                group.next_row += self._num_rows
                group.obs, group.memory = part.fields["last_obs"], part.fields["last_memory"]
                group.is_cut = True
                size = part.fields["reward"].size
                supervisor.collected += size
                supervisor.dropped["too old"] += size

    def _update_episodes(self, worker: int, part: FragmentPart) -> None:
        group = self._groups[worker]
        self._episodes += part.episodes
        group.running = part.running
        if self._envs.can_replay:
            group.history.add(part.fields["action"], part.running)

    def _join_parts(self, worker: int, parts: Sequence[FragmentPart]) -> Fragment:
        group = self._groups[worker]
        fragment = join_parts(parts, worker * self._envs.envs_per_worker)
        if group.is_cut:
            fragment.restarted_envs = tuple(np.flatnonzero(~group.has_ended).tolist())
            group.is_cut = False
        for part in parts:
            self._update_episodes(worker, part)
        group.has_ended = (fragment.terminated | fragment.truncated | ~fragment.valid)[-1]
        group.next_row += fragment.num_steps
        group.obs, group.memory = fragment.last_obs, fragment.last_memory
        size, num_valid = fragment.valid.size, int(np.count_nonzero(fragment.valid))
        self.num_transitions += num_valid
        self._num_trained += num_valid
        self._supervisor.collected += size
        if num_valid < size:
            reason = "environment failed" if self._envs.can_replay else "reset"
            self._supervisor.dropped[reason] += size - num_valid
        assert fragment.versions is not None
        self._ages[0] += fragment.num_steps
        self._ages[1] += self._supervisor.version * fragment.num_steps - int(
            fragment.versions.sum()
        )
        self._ages[2] = max(self._ages[2], self._supervisor.version - fragment.policy_version)
        return fragment

    def _make_accounting(self, *, is_over: bool, with_workers: bool) -> Accounting:
        size = self._num_rows * self._envs.envs_per_worker
        in_flight = size * sum(len(group.parts) for group in self._groups)
        dropped = Counter(self._supervisor.dropped)
        collected = self._supervisor.collected + in_flight
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

    def _worker_accounts(self) -> list[WorkerAccount]:
        recordings: Sequence[timing.Recording] = ()
        if self._envs.timing_dir:
            self._supervisor.watches.fetch()
            recordings, _ = timing.read_directory(Path(self._envs.timing_dir))
        accounts: list[WorkerAccount] = []
        for worker, group in enumerate(self._groups):
            trees = [x.tree() for x in recordings if x.component == f"worker-{worker}"]
            accounts.append(
                WorkerAccount(
                    worker=worker,
                    node=group.node,
                    steps=self._envs.envs_per_worker * (group.next_row - group.first_row),
                    restarts=self._envs.failures.restarts[worker],
                    env_failures=self._envs.failures.env_failures[worker],
                    **time_shares(timing.merge(trees)),
                )
            )
        return accounts
