"""Collecting by actors of Ray: who is asked for what, and what has come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotloop import timing
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting, WorkerAccount, shares_of
from hotloop.rollouts.collector import Slot
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import Part, joined
from hotloop.rollouts.ray.cluster import need_store
from hotloop.rollouts.ray.group import MOST_AHEAD, Group
from hotloop.rollouts.ray.supervisor import Supervisor
from hotloop.rollouts.state import GroupState, RolloutPosition, RolloutState
from hotloop.rollouts.workers.schedules import fair_shares
from hotloop.timing import span
from hotloop.types import PER_STEP, Array, Episode, Fragment

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments

# variable: a fragment's rows come in so many parts, which may be shared out unevenly.
_PARTS = 8


class RayRollout:
    """Collects by actors: parts are asked for before the learner learns; see `Rollout`.

    A part is a whole fragment, of `variable` an eighth of one, acted for by the weights that were
    published last when it was asked for.

    Args:
        envs: of the actors.
        policy: what acts; its parameters are published to the actors.
        plan: how.

    Attributes:
        num_transitions: handed over so far, over all environments.
    """

    def __init__(
        self, envs: RayEnvironments, policy: ActingPolicy, plan: CollectionOptions
    ) -> None:
        self.policy = policy
        self.num_transitions = 0
        self._envs, self._plan = envs, plan
        self._num_rows = plan.num_steps
        if plan.schedule == "variable":
            parts = next(k for k in range(_PARTS, 0, -1) if plan.num_steps % k == 0)
            self._num_rows //= parts
        example = Slot.allocate(self._num_rows, envs.envs_per_worker, policy.network).fragment
        ahead = plan.num_steps // self._num_rows * MOST_AHEAD
        if plan.schedule == "barrier":
            ahead = 1 + int(plan.overlap)
        need_store(
            envs.ray,
            ahead * envs.num_workers,
            sum(getattr(example, name).nbytes for name in PER_STEP),
            sum(array.nbytes for array in policy.snapshot.params.values()),
        )
        self._workers = [
            Group(envs.envs_per_worker, envs.first_episode, self._num_rows, example.action)
            for _ in range(envs.num_workers)
        ]
        self._supervisor = Supervisor(
            envs, policy, self._workers, num_rows=self._num_rows, seed=plan.seed
        )
        self._published: dict[str, Array] | None = None
        self._episodes: list[Episode] = []
        self._trained = 0
        self._ages = [0, 0, 0]  # rows, their versions' ages summed, the greatest
        self._account: Accounting | None = None
        self.publish(policy.snapshot)

    # --- the protocol -----------------------------------------------------------------------------

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`: one object in Ray's store, however many actors read it."""
        if self._account is None:
            self._supervisor.publish(snapshot)
        if snapshot.params is self._published and snapshot.obs_scale is None:
            self.policy.refresh(snapshot.version)
        else:
            self.policy.load(snapshot)
            self._published = snapshot.params

    def collect(self) -> list[Fragment]:
        """See `Rollout.collect`.

        Raises:
            EnvironmentFailure: environments or actors failed too often.
            NonFiniteError: the policy's outputs were NaN or infinite.
            HotloopError: the cluster is gone, or its store has no room.
        """
        if self._account is not None:
            raise EnvironmentFailure("this rollout is closed: make a new one")
        self._supervisor.set_up()
        plan = self._plan
        if plan.schedule == "barrier":
            fragments = self._take_fragments()
        elif plan.schedule == "variable":
            fragments = self._take_total()
        else:
            fragments = self._take_ready() if plan.in_fragments else self._take_all()
        return fragments

    def updates_allowed(self) -> int | None:
        """See `Rollout.updates_allowed`."""
        if self._plan.schedule != "async":
            return None
        return max(0, self._plan.max_policy_age - (self._supervisor.version - self._oldest()))

    def watch(self) -> None:
        """See `Rollout.watch`."""
        if self._supervisor.is_set_up and self._account is None:
            self._supervisor.look(0.0)

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        if any(one.obs is None for one in self._workers):
            return RolloutState(num_transitions=self.num_transitions)
        groups = [
            GroupState(
                vector_steps=one.taken,
                running=one.running,
                obs=one.obs,  # pyright: ignore[reportArgumentType]
                memory=one.memory,
                history=one.history.parts(),
            )
            for one in self._workers
        ]
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.episodes:
            return []
        own = {name: x for name, x in arrays.items() if name.startswith(("actions.", "memory."))}
        for one, vector_steps in zip(self._workers, position.vector_steps, strict=True):
            one.first_row = one.taken = vector_steps
        return self._supervisor.set_up((own, position))

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        if self._account is not None:
            return self._account
        return self._count(is_over=False, with_workers=with_workers)

    def close(self) -> None:
        """See `Rollout.close`."""
        self._envs.close()

    def keep_account(self) -> None:
        """The actors are about to end: what there is to know of them is kept."""
        if self._account is None:
            self._account = self._count(is_over=True, with_workers=True)

    # --- schedules --------------------------------------------------------------------------------

    def _take_fragments(self) -> list[Fragment]:
        """T rows of every worker."""
        self._supervisor.ask(1)
        self._supervisor.wait(lambda: all(one.made for one in self._workers))
        return self._take([1] * len(self._workers), ahead=int(self._plan.overlap))

    def _take_total(self) -> list[Fragment]:
        """T × W rows in all, and at least one part of every worker."""
        each = self._plan.num_steps // self._num_rows
        total = each * len(self._workers)

        def is_enough() -> bool:
            available = [len(one.made) for one in self._workers]
            if sum(available) >= total and min(available) > 0:
                return True
            self._supervisor.ask(MOST_AHEAD * each, queued=MOST_AHEAD)
            return False

        self._supervisor.wait(is_enough)
        shares = fair_shares([len(one.made) for one in self._workers], total)
        return self._take(shares, ahead=MOST_AHEAD if self._plan.overlap else 0)

    def _take_ready(self) -> list[Fragment]:
        """As many fragments as there are workers, those of the oldest policies first.

        What would be too old in the next iteration is waited for, or taken now.
        """
        self._supervisor.ask(MOST_AHEAD)
        workers = self._workers

        def chosen() -> list[int]:
            self._drop_old()
            ready = sorted(
                (part.version, worker) for worker, one in enumerate(workers) for part in one.made
            )
            shares = [0] * len(workers)
            for _, worker in ready[: len(workers)]:
                shares[worker] += 1
            return shares

        def is_enough() -> bool:
            shares = chosen()
            if sum(shares) < len(workers):
                return False
            oldest = self._oldest(shares)
            return self._plan.max_policy_age - (self._supervisor.version - oldest) > 0

        self._supervisor.wait(is_enough)
        return self._take(chosen(), ahead=MOST_AHEAD)

    def _take_all(self) -> list[Fragment]:
        """All there is, at least so many transitions; and what would become too old."""
        self._supervisor.ask(MOST_AHEAD)
        rows = self._num_rows * self._envs.envs_per_worker
        most = len(self._workers) * MOST_AHEAD
        minimum = min(-(-self._plan.minimum // rows), most)

        def is_enough() -> bool:
            self._drop_old()
            shares = [len(one.made) for one in self._workers]
            if sum(shares) < minimum:
                return False
            return self._plan.max_policy_age - (self._supervisor.version - self._oldest(shares)) > 0

        self._supervisor.wait(is_enough)
        return self._take([len(one.made) for one in self._workers], ahead=MOST_AHEAD)

    def _oldest(self, taken: Sequence[int] | None = None) -> int:
        """Version of what is made or in the making, but for so many parts of each worker.

        What is made by an actor that does not answer holds up nobody: too old, it is dropped.
        """
        oldest = self._supervisor.version
        for worker, one in enumerate(self._workers):
            skipped = 0 if taken is None else taken[worker]
            versions = [part.version for part in one.made]
            if one.silent_s is None:
                versions += [asked.version for asked in one.making]
            oldest = min([oldest, *versions[skipped:]])
        return oldest

    # --- taking -----------------------------------------------------------------------------------

    def _take(self, shares: Sequence[int], *, ahead: int) -> list[Fragment]:
        """Take so many parts of each worker, and ask for those that follow."""
        fragments: list[Fragment] = []
        with span("copy", kind="transfer"):
            for worker, count in enumerate(shares):
                if count:
                    parts = [self._workers[worker].made.popleft() for _ in range(count)]
                    fragments.append(self._taken(worker, parts))
        if ahead:
            self._supervisor.ask(ahead)
        return fragments

    def _drop_old(self) -> None:
        """Leave out parts that are too old for the learner: of an actor that did not answer."""
        supervisor = self._supervisor
        for worker, one in enumerate(self._workers):
            while one.made and supervisor.version - one.made[0].version > self._plan.max_policy_age:
                part = one.made.popleft()
                self._follow(worker, part)
                one.taken += self._num_rows
                one.obs, one.memory = part.fields["last_obs"], part.fields["last_memory"]
                one.is_cut = True
                size = part.fields["reward"].size
                supervisor.collected += size
                supervisor.dropped["too old"] += size

    def _follow(self, worker: int, part: Part) -> None:
        """Know where environments are after a part."""
        one = self._workers[worker]
        self._episodes += part.episodes
        one.running = part.running
        if self._envs.can_replay:
            one.history.add(part.fields["action"], part.running)

    def _taken(self, worker: int, parts: Sequence[Part]) -> Fragment:
        one = self._workers[worker]
        fragment = joined(parts, worker * self._envs.envs_per_worker)
        if one.is_cut:
            fragment.restarted_envs = tuple(np.flatnonzero(~one.has_ended).tolist())
            one.is_cut = False
        for part in parts:
            self._follow(worker, part)
        one.has_ended = (fragment.terminated | fragment.truncated | ~fragment.valid)[-1]
        one.taken += fragment.num_steps
        one.obs, one.memory = fragment.last_obs, fragment.last_memory
        size, num_valid = fragment.valid.size, int(np.count_nonzero(fragment.valid))
        self.num_transitions += num_valid
        self._trained += num_valid
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

    # --- accounting -------------------------------------------------------------------------------

    def _count(self, *, is_over: bool, with_workers: bool) -> Accounting:
        size = self._num_rows * self._envs.envs_per_worker
        in_flight = size * sum(len(one.made) for one in self._workers)
        dropped = Counter(self._supervisor.dropped)
        collected = self._supervisor.collected + in_flight
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

    def _worker_accounts(self) -> list[WorkerAccount]:
        recordings: Sequence[timing.Recording] = ()
        if self._envs.timing_dir:
            self._supervisor.watches.fetch()
            recordings, _ = timing.read_directory(Path(self._envs.timing_dir))
        accounts: list[WorkerAccount] = []
        for worker, one in enumerate(self._workers):
            trees = [x.tree() for x in recordings if x.component == f"worker-{worker}"]
            accounts.append(
                WorkerAccount(
                    worker=worker,
                    node=one.node,
                    steps=self._envs.envs_per_worker * (one.taken - one.first_row),
                    restarts=self._supervisor.restarts[worker],
                    env_failures=self._supervisor.env_failures[worker],
                    **shares_of(timing.merge(trees)),
                )
            )
        return accounts
