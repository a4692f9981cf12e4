"""The learner's side of actors: who is asked for what, who has not answered, who is replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.errors import EnvironmentFailure, HotloopError
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.ray.actor import Lost, Part, Plan
from hotloop.rollouts.ray.cluster import Head, first_line, of_actor
from hotloop.rollouts.ray.group import Asked, Group
from hotloop.rollouts.ray.inference import Weights
from hotloop.rollouts.state import RolloutPosition, memory_of, running_episodes
from hotloop.timing import span
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments

_LOOK_S = 1.0
# An actor that is silent for so long, and three times as long as for its slowest part, is asked
# after; one that can't be reached is asked again so often, and replaced after so long.
_SILENT_S = 5.0
_ASK_AGAIN_S = 1.0
_UNREACHABLE_S = 60.0


class Supervisor:
    """Asks actors for parts, and fetches them; replaces those that are lost.

    An actor that does not answer while its process or its node can't be reached is left in peace
    at first, and asked again: what it has made is not lost. The others go on, where the schedule
    lets them.

    Args:
        envs: of the actors.
        policy: what acts.
        groups: of each actor.
        num_rows: of a part.
        seed: of the noise for acting.

    Attributes:
        weights: of the newest policy, in Ray's store.
        version: of them.
        collected, dropped, restarts, env_failures, silences: counted so far; the last three by
            worker.
        watches: of nodes.
    """

    def __init__(
        self,
        envs: RayEnvironments,
        policy: ActingPolicy,
        groups: Sequence[Group],
        *,
        num_rows: int,
        seed: int,
    ) -> None:
        self.weights: Any = None
        self.version = 0
        self._publication = 0
        self.collected = 0
        self.dropped: Counter[str] = Counter()
        self.restarts: Counter[int] = Counter()
        self.env_failures: Counter[int] = Counter()
        self._envs, self._ray, self._policy, self._groups = envs, envs.ray, policy, groups
        self._num_rows, self._seed = num_rows, seed
        self._is_set_up = False
        self._resume: tuple[Mapping[str, Array], RolloutPosition] | None = None
        self._head = Head(self._ray)
        assert envs.watches is not None
        self.watches = envs.watches

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Put a policy into Ray's store, once for all actors.

        Raises:
            HotloopError: it has no room there.
        """
        self.version = snapshot.version
        self._publication += 1
        try:
            self.weights = self._ray.put(snapshot)
        except self._ray.exceptions.RayError as error:  # of several kinds: store or disk full
            size = sum(array.nbytes for array in snapshot.params.values())
            raise HotloopError(
                f"Ray's store has no room for weights of {size:,} bytes ({first_line(error)}): "
                "give it more, `ray start --object-store-memory BYTES`"
            ) from error

    # --- beginning --------------------------------------------------------------------------------

    def set_up(
        self, resume: tuple[Mapping[str, Array], RolloutPosition] | None = None
    ) -> list[int]:
        """Tell the actors what to collect, once; give the environments that begin anew.

        Args:
            resume: what another run is gone on from.
        """
        if self._is_set_up:
            return []
        self._is_set_up, self._resume = True, resume
        pending = [self._tell(worker, is_first=True) for worker in range(len(self._groups))]
        restarted: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker, one in enumerate(pending):
                try:
                    envs, obs = self._ray.get(one)
                except self._ray.exceptions.RayError as error:
                    raise of_actor(error, f"worker {worker}") from error
                if obs is not None:
                    self._brought(worker, envs, obs)
                    restarted += [worker * self._envs.envs_per_worker + i for i in envs]
        return restarted

    def _tell(self, worker: int, *, is_first: bool) -> Any:
        """Tell an actor what to collect."""
        policy, one = self._policy, self._groups[worker]
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
            seed=self._seed,
            first_env=worker * num_envs,
            first_row=one.taken + sum(len(part.fields["reward"]) for part in one.made),
            resume=resume,
            arrays=arrays,
            inference=self._envs.inference_of(worker),
        )
        return self._envs.actors[worker].set_up.remote(plan, self.weights)

    def _brought(self, worker: int, restarted: Sequence[int], obs: Array) -> None:
        """Know where an actor was brought to: where another run stood, but for some."""
        assert self._resume is not None
        arrays, position = self._resume
        one, num_envs = self._groups[worker], self._envs.envs_per_worker
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

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, ahead: int, queued: int | None = None) -> None:
        """Ask every actor for parts, until it has made so many or has them to make.

        Args:
            ahead: parts.
            queued: of them, in the making at most; None: as many.
        """
        for worker, one in enumerate(self._groups):
            while one.num_ahead < ahead and (queued is None or len(one.making) < queued):
                if one.silent_s is not None:
                    break
                self._ask_next(worker)

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait until so much is there."""
        self.look(0.0)
        if not is_enough():
            with span("wait_for_workers", kind="wait"):
                while not is_enough():
                    self.look(_LOOK_S)

    def look(self, timeout_s: float) -> None:
        """Fetch what has come; replace who is lost, and ask after who is silent.

        Raises:
            HotloopError: the cluster is gone, or what failed can't be mended.
        """
        self._head.check()
        self.watches.look()
        self._ask_after()
        first = {one.making[0].ref: n for n, one in enumerate(self._groups) if one.making}
        if not first:
            if timeout_s:
                time.sleep(min(timeout_s, 0.1))  # all are silent
            return
        come, _ = self._ray.wait(list(first), num_returns=1, timeout=timeout_s)
        if come:  # what else is there
            come, _ = self._ray.wait(list(first), num_returns=len(first), timeout=0.0)
        for ref in come:
            self._fetch(first[ref], ref)

    @property
    def is_set_up(self) -> bool:
        """Whether actors know what to collect."""
        return self._is_set_up

    def _ask_next(self, worker: int) -> None:
        one = self._groups[worker]
        self._ask_for(worker, one.next_part)
        one.next_part += 1

    def _ask_for(self, worker: int, number: int) -> None:
        one = self._groups[worker]
        # In a list, which Ray leaves as it is: who computes the network fetches them.
        lies_in = [] if self._envs.inference_of(worker) is None else [self.weights]
        weights = Weights(self._publication, lies_in)
        ref = self._envs.actors[worker].collect.remote(self.weights, number, weights)
        if not one.making:
            one.began_s = time.monotonic()
        one.making.append(Asked(ref, self.version, number))

    def _fetch(self, worker: int, ref: Any) -> None:
        """Take a part, or find out why there is none."""
        one, errors = self._groups[worker], self._ray.exceptions
        try:
            part: Part = self._ray.get(ref)
        except errors.ActorUnavailableError:
            self._is_silent(worker, "it can't be reached")
            one.unanswered = [asked.number for asked in one.making]
            one.making.clear()
            return
        except errors.ActorDiedError as error:
            self._replace(worker, self._why_it_died(worker, error))
            return
        except errors.RayTaskError as error:
            if not isinstance(error.cause, Lost):
                raise of_actor(error, f"worker {worker}") from error
            self._replace(worker, str(error.cause))
            return
        except (errors.ObjectLostError, errors.OutOfDiskError) as error:
            self._replace(worker, f"its part is lost ({first_line(error)})")
            return
        except errors.RayError as error:
            raise of_actor(error, f"worker {worker}") from error
        now = time.monotonic()
        one.making.popleft()
        one.longest_s = max(one.longest_s, now - one.began_s)
        one.began_s, one.silent_s = now, None
        one.pid, one.node = part.pid, part.node
        self.watches.need(part.node)
        one.made.append(part)
        if part.inference is not None:
            self._envs.answered(worker, part.inference)
        for failure in part.failures:
            self.env_failures[worker] += 1
            self._count_failure(worker, failure)

    # --- silence ----------------------------------------------------------------------------------

    def _ask_after(self) -> None:
        """Look after the actors that have not answered for long, and ask again those that were."""
        now = time.monotonic()
        for worker, one in enumerate(self._groups):
            if one.silent_s is None:
                if not one.making or one.pid is None:
                    continue
                if now - one.began_s < max(_SILENT_S, 3 * one.longest_s):
                    continue
                if now - one.asked_s >= _SILENT_S:
                    one.asked_s = now
                    state = self.watches.state(one.node, one.pid)
                    if state in ("?", "T", "t"):
                        reason = "its node does not answer" if state == "?" else "it is stopped"
                        self._is_silent(worker, reason)
                continue
            limit_s = self._envs.step_timeout_s or _UNREACHABLE_S
            if now - one.silent_s > min(limit_s, _UNREACHABLE_S):
                self._replace(worker, "it could not be reached for too long")
            elif one.unanswered and now - one.asked_s >= _ASK_AGAIN_S:
                # A part that it has made already is sent again, and not made again.
                one.asked_s = now
                numbers, one.unanswered = one.unanswered, []
                for number in numbers:
                    self._ask_for(worker, number)

    def _is_silent(self, worker: int, reason: str) -> None:
        """An actor can't be reached: it may be again."""
        one = self._groups[worker]
        one.asked_s = time.monotonic()
        if one.silent_s is None:
            one.silent_s = one.asked_s
            warnings.warn(
                f"worker {worker}: {reason}; it is waited for, up to {_UNREACHABLE_S:.0f} s",
                RuntimeWarning,
                stacklevel=2,
            )

    def _why_it_died(self, worker: int, error: Exception) -> str:
        reason = f"its actor died ({first_line(error)})"
        one, longest_s = self._groups[worker], self._envs.longest_step_s
        passed_s = time.monotonic() - one.began_s
        is_alone = self._envs.inference_of(worker) is None  # else it may have waited for that
        if longest_s is not None and passed_s > longest_s and is_alone:
            each = self._envs.step_timeout_s
            reason += (
                f", {passed_s:.0f} s into a part; a step of an environment that takes more than "
                f"{each:g} s (`step_timeout_s`) ends it"
            )
        return reason

    def _replace(self, worker: int, reason: str) -> None:
        """Start another actor in the place of one that is lost, and ask it for as much."""
        self.restarts[worker] += 1
        self._count_failure(worker, reason)
        one, actors = self._groups[worker], self._envs.actors
        # Who was at it has begun some of these rows; those after them nobody has.
        self.dropped["worker died"] += self._num_rows * self._envs.envs_per_worker
        self.collected += self._num_rows * self._envs.envs_per_worker
        num_asked = len(one.making) + len(one.unanswered)
        one.making.clear()
        one.unanswered.clear()
        one.silent_s = one.pid = None
        with contextlib.suppress(Exception):
            self._ray.kill(actors[worker])
        running = one.made[-1].running if one.made else one.running
        if running:
            one.next_episode = 1 + max(episode for episode, _ in running)
        if one.taken > one.first_row:
            one.is_cut |= not one.made
        actors[worker] = self._envs.start(worker, one.next_episode)
        self._tell(worker, is_first=not running)
        one.next_part = 0
        for _ in range(num_asked):
            self._ask_next(worker)
        if one.made:  # what was made before it is taken first
            self._cut_after_made(one)

    def _cut_after_made(self, one: Group) -> None:
        """The last row that was made ends its episodes: what follows is of others."""
        fields = one.made[-1].fields
        ends = fields["truncated"].copy()  # what comes from Ray's store may not be written to
        ends[-1] |= ~fields["terminated"][-1]
        fields["truncated"] = ends

    def _count_failure(self, worker: int, reason: str) -> None:
        count = sum(self.restarts.values()) + sum(self.env_failures.values())
        if count > self._envs.max_failures:
            raise EnvironmentFailure(
                f"worker {worker}: {reason}; environments and workers were replaced "
                f"{self._envs.max_failures} times before: mend them, or raise `max_failures`"
            )
