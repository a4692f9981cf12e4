"""Collecting by actors of Ray: who is asked for what, and what has come of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop import timing
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting, WorkerAccount, shares_of
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import Lost, Part, Plan, joined
from hotloop.rollouts.ray.cluster import first_line, of_actor
from hotloop.rollouts.ray.group import MOST_AHEAD, Group
from hotloop.rollouts.state import (
    GroupState,
    RolloutPosition,
    RolloutState,
    memory_of,
    running_episodes,
)
from hotloop.rollouts.workers.schedules import fair_shares
from hotloop.timing import span
from hotloop.types import Array, Episode, Fragment

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments

# variable: a fragment's rows come in so many parts, which may be shared out unevenly.
_PARTS = 8
_LOOK_S = 1.0


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
        self._envs, self._ray, self._plan = envs, envs.ray, plan
        self._num_rows = plan.num_steps
        if plan.schedule == "variable":
            parts = next(k for k in range(_PARTS, 0, -1) if plan.num_steps % k == 0)
            self._num_rows //= parts
        network = policy.network
        action = np.zeros(
            (self._num_rows, envs.envs_per_worker, *network.action_spec.shape),
            network.action_spec.dtype,
        )
        self._workers = [
            Group(envs.envs_per_worker, envs.first_episode, self._num_rows, action)
            for _ in range(envs.num_workers)
        ]
        self._weights: Any = None
        self._version = 0
        self._published: dict[str, Array] | None = None
        self._is_set_up = False
        self._resume: tuple[Mapping[str, Array], RolloutPosition] | None = None
        self._episodes: list[Episode] = []
        self._collected = self._trained = 0
        self._dropped: Counter[str] = Counter()
        self._restarts: Counter[int] = Counter()
        self._env_failures: Counter[int] = Counter()
        self._ages = [0, 0, 0]  # rows, their versions' ages summed, the greatest
        self._account: Accounting | None = None
        self.publish(policy.snapshot)

    # --- the protocol -----------------------------------------------------------------------------

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`: one object in Ray's store, however many actors read it."""
        if self._account is None:
            self._version = snapshot.version
            self._weights = self._ray.put(snapshot)
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
        """
        self._set_up()
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
        return max(0, self._plan.max_policy_age - (self._version - self._oldest()))

    def watch(self) -> None:
        """See `Rollout.watch`."""
        if self._is_set_up:
            self._look(0.0)

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
        self._resume = own, position
        for one, vector_steps in zip(self._workers, position.vector_steps, strict=True):
            one.first_row = one.taken = vector_steps
        return self._set_up()

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
        self._ask(1)
        self._wait(lambda: all(one.made for one in self._workers))
        return self._take([1] * len(self._workers), ahead=int(self._plan.overlap))

    def _take_total(self) -> list[Fragment]:
        """T × W rows in all, and at least one part of every worker."""
        each = self._plan.num_steps // self._num_rows
        total = each * len(self._workers)

        def is_enough() -> bool:
            available = [len(one.made) for one in self._workers]
            if sum(available) >= total and min(available) > 0:
                return True
            self._ask(MOST_AHEAD * each, queued=MOST_AHEAD)
            return False

        self._wait(is_enough)
        shares = fair_shares([len(one.made) for one in self._workers], total)
        return self._take(shares, ahead=MOST_AHEAD if self._plan.overlap else 0)

    def _take_ready(self) -> list[Fragment]:
        """As many fragments as there are workers, those of the oldest policies first.

        What would be too old in the next iteration is waited for, or taken now.
        """
        self._ask(MOST_AHEAD)
        workers = self._workers

        def chosen() -> list[int]:
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
            return self._plan.max_policy_age - (self._version - oldest) > 0

        self._wait(is_enough)
        return self._take(chosen(), ahead=MOST_AHEAD)

    def _take_all(self) -> list[Fragment]:
        """All there is, at least so many transitions; and what would become too old."""
        self._ask(MOST_AHEAD)
        rows = self._num_rows * self._envs.envs_per_worker
        most = len(self._workers) * MOST_AHEAD
        minimum = min(-(-self._plan.minimum // rows), most)

        def is_enough() -> bool:
            shares = [len(one.made) for one in self._workers]
            if sum(shares) < minimum:
                return False
            return self._plan.max_policy_age - (self._version - self._oldest(shares)) > 0

        self._wait(is_enough)
        return self._take([len(one.made) for one in self._workers], ahead=MOST_AHEAD)

    def _oldest(self, taken: Sequence[int] | None = None) -> int:
        """Version of what is made or in the making, but for so many parts of each worker."""
        oldest = self._version
        for worker, one in enumerate(self._workers):
            skipped = 0 if taken is None else taken[worker]
            versions = [part.version for part in one.made] + [version for _, version in one.making]
            oldest = min([oldest, *versions[skipped:]])
        return oldest

    # --- actors -----------------------------------------------------------------------------------

    def _set_up(self) -> list[int]:
        """Tell the actors what to collect, once; give the environments that begin anew."""
        if self._account is not None:
            raise EnvironmentFailure("this rollout is closed: make a new one")
        if self._is_set_up:
            return []
        self._is_set_up = True
        pending = [self._tell(worker, is_first=True) for worker in range(len(self._workers))]
        restarted: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker, one in enumerate(pending):
                try:
                    envs, obs = self._ray.get(one)
                except self._ray.exceptions.RayError as error:
                    raise of_actor(error, worker) from error
                if obs is not None:
                    self._brought(worker, envs, obs)
                    restarted += [worker * self._envs.envs_per_worker + i for i in envs]
        return restarted

    def _tell(self, worker: int, *, is_first: bool) -> Any:
        """Tell an actor what to collect."""
        policy, one = self.policy, self._workers[worker]
        num_envs = self._envs.envs_per_worker
        resume, arrays = None, {}
        if is_first and self._resume is not None:
            stored, position = self._resume
            first = worker * num_envs
            resume = list(position.episodes[first : first + num_envs])
            arrays = {
                f"{what}.{i}": stored[f"{what}.{first + i}"]
                for i in range(num_envs)
                for what in ("actions", "memory")
                if f"{what}.{first + i}" in stored
            }
        explores = policy.exploration
        plan = Plan(
            network=policy.network.to_json(),
            exploration=None if explores is None else dataclasses.asdict(explores),
            num_rows=self._num_rows,
            seed=self._plan.seed,
            first_env=worker * num_envs,
            first_row=one.taken + sum(len(part.fields["reward"]) for part in one.made),
            resume=resume,
            arrays=arrays,
        )
        return self._envs.actors[worker].set_up.remote(plan, self._weights)

    def _brought(self, worker: int, restarted: Sequence[int], obs: Array) -> None:
        """Know where an actor was brought to: where another run stood, but for some."""
        assert self._resume is not None
        arrays, position = self._resume
        one, num_envs = self._workers[worker], self._envs.envs_per_worker
        first = worker * num_envs
        one.running = [
            (position.episodes[first + i][0] + 1, 0)
            if i in restarted
            else (position.episodes[first + i][0], len(arrays[f"actions.{first + i}"]))
            for i in range(num_envs)
        ]
        one.next_episode = 1 + max(episode for episode, _ in one.running)
        one.has_ended[:] = False
        one.obs = obs
        memory = memory_of(arrays, first, num_envs)
        if memory is not None:
            one.memory = memory
            one.memory[list(restarted)] = 0.0
        if self._envs.can_replay:
            own = running_episodes(arrays, position.episodes)[first : first + num_envs]
            one.history.resume(own, one.running)

    def _ask(self, ahead: int, queued: int | None = None) -> None:
        """Ask every actor for parts, until it has made so many or has them to make.

        Args:
            ahead: parts.
            queued: of them, in the making at most; None: as many.
        """
        for one, actor in zip(self._workers, self._envs.actors, strict=True):
            while one.num_ahead < ahead and (queued is None or len(one.making) < queued):
                one.making.append((actor.collect.remote(self._weights), self._version))

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        self._look(0.0)
        if not is_enough():
            with span("wait_for_workers", kind="wait"):
                while not is_enough():
                    self._look(_LOOK_S)

    def _look(self, timeout_s: float) -> None:
        """Fetch what has come; replace who is lost."""
        first = {one.making[0][0]: worker for worker, one in enumerate(self._workers) if one.making}
        if not first:
            return
        come, _ = self._ray.wait(list(first), num_returns=1, timeout=timeout_s)
        if come:  # what else is there
            come, _ = self._ray.wait(list(first), num_returns=len(first), timeout=0.0)
        errors = self._ray.exceptions
        for ref in come:
            worker = first[ref]
            one = self._workers[worker]
            try:
                part: Part = self._ray.get(ref)
            except (errors.ActorDiedError, errors.ActorUnavailableError) as error:
                self._replace(worker, f"its actor died ({first_line(error)})")
                continue
            except errors.RayTaskError as error:
                if not isinstance(error.cause, Lost):
                    raise of_actor(error, worker) from error
                self._replace(worker, str(error.cause))
                continue
            except errors.RayError as error:
                raise of_actor(error, worker) from error
            one.making.popleft()
            one.made.append(part)
            for failure in part.failures:
                self._env_failures[worker] += 1
                self._count_failure(worker, failure)

    def _replace(self, worker: int, reason: str) -> None:
        """Start another actor in the place of one that is lost, and ask it for as much."""
        self._restarts[worker] += 1
        self._count_failure(worker, reason)
        one, actors = self._workers[worker], self._envs.actors
        # Who was at it has begun some of these rows; those after them nobody has.
        self._dropped["worker died"] += self._num_rows * self._envs.envs_per_worker
        self._collected += self._num_rows * self._envs.envs_per_worker
        num_asked = len(one.making)
        one.making.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(actors[worker])
        running = one.made[-1].running if one.made else one.running
        if running:
            one.next_episode = 1 + max(episode for episode, _ in running)
        if one.made or one.taken > one.first_row:
            one.is_cut = not one.made
        actors[worker] = self._envs.start(worker, one.next_episode)
        self._tell(worker, is_first=not running)
        for _ in range(num_asked):
            ref = actors[worker].collect.remote(self._weights)
            one.making.append((ref, self._version))
        if one.made:  # what was made before it is taken first
            self._cut_after_made(one)

    def _cut_after_made(self, one: Group) -> None:
        """The last row that was made ends its episodes: what follows is of others."""
        fields = one.made[-1].fields
        fields["truncated"][-1] |= ~fields["terminated"][-1]

    def _count_failure(self, worker: int, reason: str) -> None:
        count = sum(self._restarts.values()) + sum(self._env_failures.values())
        if count > self._envs.max_failures:
            raise EnvironmentFailure(
                f"worker {worker}: {reason}; environments and workers were replaced "
                f"{self._envs.max_failures} times before: mend them, or raise `max_failures`"
            )

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
            self._ask(ahead)
        return fragments

    def _taken(self, worker: int, parts: Sequence[Part]) -> Fragment:
        one = self._workers[worker]
        fragment = joined(parts, worker * self._envs.envs_per_worker)
        if one.is_cut:
            fragment.restarted_envs = tuple(np.flatnonzero(~one.has_ended).tolist())
            one.is_cut = False
        for part in parts:
            self._episodes += part.episodes
            one.running = part.running
            if self._envs.can_replay:
                one.history.add(part.fields["action"], part.running)
        one.has_ended = (fragment.terminated | fragment.truncated | ~fragment.valid)[-1]
        one.taken += fragment.num_steps
        one.obs, one.memory = fragment.last_obs, fragment.last_memory
        size, num_valid = fragment.valid.size, int(np.count_nonzero(fragment.valid))
        self.num_transitions += num_valid
        self._trained += num_valid
        self._collected += size
        if num_valid < size:
            reason = "environment failed" if self._envs.can_replay else "reset"
            self._dropped[reason] += size - num_valid
        assert fragment.versions is not None
        self._ages[0] += fragment.num_steps
        self._ages[1] += self._version * fragment.num_steps - int(fragment.versions.sum())
        self._ages[2] = max(self._ages[2], self._version - fragment.policy_version)
        return fragment

    # --- accounting -------------------------------------------------------------------------------

    def _count(self, *, is_over: bool, with_workers: bool) -> Accounting:
        size = self._num_rows * self._envs.envs_per_worker
        in_flight = size * sum(len(one.made) for one in self._workers)
        dropped = Counter(self._dropped)
        collected = self._collected + in_flight
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
            recordings, _ = timing.read_directory(Path(self._envs.timing_dir))
        accounts: list[WorkerAccount] = []
        for worker, one in enumerate(self._workers):
            trees = [x.tree() for x in recordings if x.component == f"worker-{worker}"]
            accounts.append(
                WorkerAccount(
                    worker=worker,
                    steps=self._envs.envs_per_worker * (one.taken - one.first_row),
                    restarts=self._restarts[worker],
                    env_failures=self._env_failures[worker],
                    **shares_of(timing.merge(trees)),
                )
            )
        return accounts
