"""The supervisor that requests parts from actors, and replaces lost actors."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.errors import HotloopError
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.ray.actor import ActorSetup, FragmentPart, RecoverableFailure
from hotloop.rollouts.ray.cluster import ClusterHead, actor_error, first_line
from hotloop.rollouts.ray.group import ActorGroup, PartRequest
from hotloop.rollouts.ray.inference import WeightsRef
from hotloop.rollouts.state import RolloutPosition, running_episodes, saved_hidden_states
from hotloop.timing import span
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments

_POLL_S = 1.0
# An actor is checked after `_SILENT_S`, and three times the duration of its slowest part. If it
# can't be reached, requests are repeated at intervals, and it is replaced after `_UNREACHABLE_S`.
_SILENT_S = 5.0
_RETRY_S = 1.0
_UNREACHABLE_S = 60.0


class ActorSupervisor:
    """Requests parts from actors, fetches them, and replaces lost actors.

    An actor whose process or node can't be reached is not replaced at first but asked again,
    because its finished parts are not lost. The other actors continue if the schedule permits.

    Args:
        envs: Environments of the actors.
        policy: Acting policy.
        groups: Group of each actor.
        num_rows: Rows of a part.
        seed: Seed of the action noise.

    Attributes:
        weights: Reference to the newest policy in Ray's store.
        version: Version of the newest policy.
        collected, dropped: Transitions so far, dropped ones by reason.
        watches: Watches of the nodes.
    """

    def __init__(
        self,
        envs: RayEnvironments,
        policy: ActingPolicy,
        groups: Sequence[ActorGroup],
        *,
        num_rows: int,
        seed: int,
    ) -> None:
        self.weights: Any = None
        self.version = 0
        self._publication = 0
        self.collected = 0
        self.dropped: Counter[str] = Counter()
        self._envs, self._ray, self._policy, self._groups = envs, envs.ray, policy, groups
        self._num_rows, self._seed = num_rows, seed
        self._is_set_up = False
        self._restored: tuple[Mapping[str, Array], RolloutPosition] | None = None
        self._head = ClusterHead(self._ray)
        assert envs.watches is not None
        self.watches = envs.watches

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Put a policy into Ray's store, once for all actors.

        Raises:
            HotloopError: The store has no room.
        """
        self.version = snapshot.version
        self._publication += 1
        try:
            self.weights = self._ray.put(snapshot)
        except self._ray.exceptions.RayError as error:  # several types: store or disk full
            size = sum(array.nbytes for array in snapshot.params.values())
            raise HotloopError(
                f"Ray's store has no room for weights of {size:,} bytes ({first_line(error)}): "
                "give it more, `ray start --object-store-memory BYTES`"
            ) from error

    # --- setup ------------------------------------------------------------------------------------

    def set_up(
        self, resume: tuple[Mapping[str, Array], RolloutPosition] | None = None
    ) -> list[int]:
        """Send the setups to the actors, once, and return the environments that restarted.

        Args:
            resume: State of the run to resume.
        """
        if self._is_set_up:
            return []
        self._is_set_up, self._restored = True, resume
        pending = [self._send_setup(worker, is_first=True) for worker in range(len(self._groups))]
        restarted_envs: list[int] = []
        with span("wait_for_workers", kind="wait"):
            for worker, ref in enumerate(pending):
                try:
                    envs, obs = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    raise actor_error(error, f"worker {worker}") from error
                if obs is not None:
                    self._on_resumed(worker, envs, obs)
                    restarted_envs += [worker * self._envs.envs_per_worker + i for i in envs]
        return restarted_envs

    def _send_setup(self, worker: int, *, is_first: bool) -> Any:
        """Send the setup to an actor, and return Ray's reference to the answer."""
        policy, group = self._policy, self._groups[worker]
        num_envs = self._envs.envs_per_worker
        resume, arrays = None, {}
        if is_first and self._restored is not None:
            stored, position = self._restored
            first_env = worker * num_envs
            resume = list(position.episodes[first_env : first_env + num_envs])
            arrays = {
                f"{kind}.{i}": stored[f"{kind}.{first_env + i}"]
                for i in range(num_envs)
                for kind in ("actions", "memory")
                if f"{kind}.{first_env + i}" in stored
            }
        setup = ActorSetup(
            network=policy.network.to_json(),
            exploration=policy.exploration,
            num_rows=self._num_rows,
            seed=self._seed,
            first_env=worker * num_envs,
            first_row=group.next_row + sum(len(part.fields["reward"]) for part in group.parts),
            resume=resume,
            arrays=arrays,
            inference=self._envs.inference_of(worker),
        )
        return self._envs.actors[worker].set_up.remote(setup, self.weights)

    def _on_resumed(self, worker: int, restarted_envs: Sequence[int], obs: Array) -> None:
        """Record that an actor has restored its environments, except `restarted_envs`."""
        assert self._restored is not None
        arrays, position = self._restored
        group, num_envs = self._groups[worker], self._envs.envs_per_worker
        first_env = worker * num_envs
        group.running = [
            (position.episodes[first_env + i][0] + 1, 0)
            if i in restarted_envs
            else (position.episodes[first_env + i][0], len(arrays[f"actions.{first_env + i}"]))
            for i in range(num_envs)
        ]
        group.next_episode = 1 + max(episode for episode, _ in group.running)
        group.has_ended[:] = False
        group.obs = obs
        memory = saved_hidden_states(arrays, first_env, num_envs)
        if memory is not None:
            group.memory = memory
            group.memory[list(restarted_envs)] = 0.0
        if self._envs.can_replay:
            episodes = running_episodes(arrays, position.episodes)[first_env : first_env + num_envs]
            group.history.resume(episodes, group.running)

    # --- requests ---------------------------------------------------------------------------------

    def request_parts(self, ahead: int, limit: int | None = None) -> None:
        """Request parts from every actor.

        Args:
            ahead: Maximum number of requested and ready parts per actor.
            limit: Maximum number of open requests per actor. None: `ahead`.
        """
        for worker, group in enumerate(self._groups):
            while group.num_ahead < ahead and (limit is None or len(group.requests) < limit):
                if group.silent_since_s is not None:
                    break
                self._request_next(worker)

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait until `is_enough` returns True."""
        self.poll(0.0)
        if not is_enough():
            with span("wait_for_workers", kind="wait"):
                while not is_enough():
                    self.poll(_POLL_S)

    def poll(self, timeout_s: float) -> None:
        """Fetch parts that are ready, replace lost actors, and check silent actors.

        Raises:
            HotloopError: The cluster is gone, or an actor can't be replaced.
        """
        self._head.check()
        self.watches.poll()
        self._check_silent()
        workers = {x.requests[0].ref: n for n, x in enumerate(self._groups) if x.requests}
        if not workers:
            if timeout_s:
                time.sleep(min(timeout_s, 0.1))  # all actors are silent
            return
        ready, _ = self._ray.wait(list(workers), num_returns=1, timeout=timeout_s)
        if ready:  # take all other ready parts too
            ready, _ = self._ray.wait(list(workers), num_returns=len(workers), timeout=0.0)
        for ref in ready:
            self._fetch(workers[ref], ref)

    @property
    def is_set_up(self) -> bool:
        """Whether the actors have received their setups."""
        return self._is_set_up

    def _request_next(self, worker: int) -> None:
        group = self._groups[worker]
        self._request(worker, group.next_part)
        group.next_part += 1

    def _request(self, worker: int, number: int) -> None:
        group = self._groups[worker]
        # Ray does not resolve a reference in a list: the inference actor fetches the weights.
        weights_ref = [] if self._envs.inference_of(worker) is None else [self.weights]
        weights = WeightsRef(self._publication, weights_ref)
        ref = self._envs.actors[worker].collect.remote(self.weights, number, weights)
        if not group.requests:
            group.started_at_s = time.monotonic()
        group.requests.append(PartRequest(ref, self.version, number))

    def _fetch(self, worker: int, ref: Any) -> None:
        """Fetch a part, or handle the reason for its absence."""
        group, errors = self._groups[worker], self._ray.exceptions
        try:
            part: FragmentPart = self._ray.get(ref)
        except errors.ActorUnavailableError:
            self._mark_silent(worker, "it can't be reached")
            group.unanswered = [request.number for request in group.requests]
            group.requests.clear()
            return
        except errors.ActorDiedError as error:
            self._replace(worker, self._death_reason(worker, error))
            return
        except errors.RayTaskError as error:
            if not isinstance(error.cause, RecoverableFailure):
                raise actor_error(error, f"worker {worker}") from error
            self._replace(worker, str(error.cause))
            return
        except (errors.ObjectLostError, errors.OutOfDiskError) as error:
            self._replace(worker, f"its part is lost ({first_line(error)})")
            return
        except errors.RayError as error:
            raise actor_error(error, f"worker {worker}") from error
        now = time.monotonic()
        group.requests.popleft()
        group.max_part_s = max(group.max_part_s, now - group.started_at_s)
        group.started_at_s, group.silent_since_s = now, None
        group.pid, group.node = part.pid, part.node
        self.watches.add_node(part.node)
        group.parts.append(part)
        if part.inference is not None:
            self._envs.on_answer(worker, part.inference)
        for failure in part.failures:
            self._envs.failures.env_failures[worker] += 1
            self._envs.failures.count(f"worker {worker}", failure)

    # --- silence ----------------------------------------------------------------------------------

    def _check_silent(self) -> None:
        """Check actors that have not answered for long, and repeat requests to silent actors."""
        now = time.monotonic()
        for worker, group in enumerate(self._groups):
            if group.silent_since_s is None:
                if not group.requests or group.pid is None:
                    continue
                if now - group.started_at_s < max(_SILENT_S, 3 * group.max_part_s):
                    continue
                if now - group.checked_at_s >= _SILENT_S:
                    group.checked_at_s = now
                    state = self.watches.state(group.node, group.pid)
                    if state in ("?", "T", "t"):
                        reason = "its node does not answer" if state == "?" else "it is stopped"
                        self._mark_silent(worker, reason)
                continue
            limit_s = self._envs.step_timeout_s or _UNREACHABLE_S
            if now - group.silent_since_s > min(limit_s, _UNREACHABLE_S):
                self._replace(worker, "it could not be reached for too long")
            elif group.unanswered and now - group.checked_at_s >= _RETRY_S:
                # The actor sends a finished part again, and does not collect it again.
                group.checked_at_s = now
                numbers, group.unanswered = group.unanswered, []
                for number in numbers:
                    self._request(worker, number)

    def _mark_silent(self, worker: int, reason: str) -> None:
        """Record that an actor can't be reached, and warn once."""
        group = self._groups[worker]
        group.checked_at_s = time.monotonic()
        if group.silent_since_s is None:
            group.silent_since_s = group.checked_at_s
            warnings.warn(
                f"worker {worker}: {reason}; waiting for it up to {_UNREACHABLE_S:.0f} s",
                RuntimeWarning,
                stacklevel=2,
            )

    def _death_reason(self, worker: int, error: Exception) -> str:
        reason = f"its actor died ({first_line(error)})"
        group, max_step_s = self._groups[worker], self._envs.max_step_s
        elapsed_s = time.monotonic() - group.started_at_s
        is_alone = self._envs.inference_of(worker) is None  # otherwise inference may be slow
        if max_step_s is not None and elapsed_s > max_step_s and is_alone:
            step_s = self._envs.step_timeout_s
            reason += (
                f", {elapsed_s:.0f} s into a part; a step of an environment that takes more than "
                f"{step_s:g} s (`step_timeout_s`) ends it"
            )
        return reason

    def _replace(self, worker: int, reason: str) -> None:
        """Start another actor in place of a lost one, and repeat the open requests."""
        self._envs.failures.restarts[worker] += 1
        self._envs.failures.count(f"worker {worker}", reason)
        group, actors = self._groups[worker], self._envs.actors
        # The lost actor had begun some rows of one part, and none of the later parts.
        self.dropped["worker died"] += self._num_rows * self._envs.envs_per_worker
        self.collected += self._num_rows * self._envs.envs_per_worker
        num_requests = len(group.requests) + len(group.unanswered)
        group.requests.clear()
        group.unanswered.clear()
        group.silent_since_s = group.pid = None
        with contextlib.suppress(Exception):
            self._ray.kill(actors[worker])
        running = group.parts[-1].running if group.parts else group.running
        if running:
            group.next_episode = 1 + max(episode for episode, _ in running)
        if group.next_row > group.first_row:
            group.is_cut |= not group.parts
        actors[worker] = self._envs.start(worker, group.next_episode)
        self._send_setup(worker, is_first=not running)
        group.next_part = 0
        for _ in range(num_requests):
            self._request_next(worker)
        if group.parts:  # they are taken before the new actor's parts
            self._end_running_episodes(group)

    def _end_running_episodes(self, group: ActorGroup) -> None:
        """Truncate the running episodes at the last row of a lost actor."""
        fields = group.parts[-1].fields
        truncated = fields["truncated"].copy()  # arrays of Ray's store are read-only
        truncated[-1] |= ~fields["terminated"][-1]
        fields["truncated"] = truncated
