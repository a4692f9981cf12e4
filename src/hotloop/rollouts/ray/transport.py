"""Ray actors that collect parts of fragments, which arrive through Ray's store."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotloop.errors import HotloopError, first_line
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import recordings_of_this_run
from hotloop.rollouts.collector import Slot
from hotloop.rollouts.env_calls import EnvCall, pickle_call
from hotloop.rollouts.failures import compare_spaces
from hotloop.rollouts.fleet import FleetRollout, WorkerRows
from hotloop.rollouts.parts import FragmentPart, PartQueue
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import ActorPart, ActorSetup, RecoverableFailure, TooManyFailures
from hotloop.rollouts.ray.actor_state import ActorState, PartRequest
from hotloop.rollouts.ray.cluster import ClusterHead, actor_error, check_store
from hotloop.rollouts.ray.inference import WeightsRef
from hotloop.rollouts.schedules import NUM_AHEAD, RowLimits
from hotloop.timing import Recording
from hotloop.types import PER_STEP

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments
    from hotloop.rollouts.ray.following import FollowingActors

# Parts of a fragment for schedule `variable`, whose workers may supply unequal numbers of rows.
_PARTS = 8
_POLL_S = 1.0
# An actor is checked after `_SILENT_S`, and three times the duration of its slowest part. If it
# can't be reached, requests are repeated at intervals, and it is replaced after `_UNREACHABLE_S`.
_SILENT_S = 5.0
_RETRY_S = 1.0
_UNREACHABLE_S = 60.0
# Time after which a warning names an actor that is not set up: its node may have no room.
_SLOW_START_S = 20.0


class ActorTransport:
    """Requests parts from actors, fetches them, and replaces lost actors; see `Transport`.

    A part is a whole fragment, or an eighth of one for schedule `variable`. The actor uses the
    weights that were the newest at the time of the request.

    If the process or node of an actor can't be reached, the transport first repeats its requests,
    because finished parts are not lost. The other actors continue if the schedule permits.

    Args:
        envs: Environments of the actors, which are ready.
        policy: Acting policy.
        options: Collection options.
        num_envs: Environments of each actor that the policy acts in. None: all.

    Attributes:
        followers: Rollouts of the policies that act within the steps of this one.

    Raises:
        ConfigError: Ray's store is too small.
    """

    def __init__(
        self,
        envs: RayEnvironments,
        policy: ActingPolicy,
        options: CollectionOptions,
        num_envs: int | None = None,
    ) -> None:
        self.num_workers = envs.num_workers
        self.envs_per_worker = envs.envs_per_worker if num_envs is None else num_envs
        self.followers: list[tuple[FollowingActors, FleetRollout]] = []
        self.can_replay, self.failures = envs.can_replay, envs.failures
        self._envs, self._ray, self._policy, self._options = envs, envs.ray, policy, options
        self._part_rows = options.num_steps
        if options.schedule == "variable":
            self._part_rows = -(-options.num_steps // _PARTS)
        # Maximum number of an actor's parts in flight: those of two fragments.
        self._max_ahead = NUM_AHEAD * -(-options.num_steps // self._part_rows)
        # Check that all parts in flight fit into the store.
        is_barrier = options.schedule == "barrier"
        row = Slot.allocate(1, self.envs_per_worker, policy.network).fragment
        check_store(
            envs.ray,
            (1 + options.overlap if is_barrier else NUM_AHEAD) * self.num_workers,
            options.num_steps * sum(getattr(row, name).nbytes for name in PER_STEP),
            sum(array.nbytes for array in policy.snapshot.params.values()),
        )
        self._actors: list[ActorState] = []
        self._total_limit: int | None = None
        self._granted_at_s = self._polled_at_s = time.monotonic()
        self._max_gap_s = 0.0  # longest time between two polls since the last grant
        self._unreachable_s = min(_UNREACHABLE_S, envs.step_timeout_s or _UNREACHABLE_S)
        self.weights: Any = None  # reference to the newest policy in Ray's store
        self._version = self.publication = 0
        self._fleet: FleetRollout | None = None
        self._head = ClusterHead(self._ray)
        assert envs.watches is not None
        self._watches = envs.watches

    # --- calls of the rollout: see `Transport` ----------------------------------------------------

    def start(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Send the setups to all actors, and wait for their answers."""
        self.begin(fleet, first_rows)
        for _, follower in self.followers:
            follower.set_up()
        for worker in range(self.num_workers):
            self._send_setup(worker)
        while any(actor.setup is not None for actor in self._actors):
            self._poll(_POLL_S)

    def begin(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Set the first rows of all actors."""
        self._fleet = fleet
        self._actors = [
            ActorState(
                next_row=row,
                finished_row=row,
                requested_row=row,
                parts=PartQueue(first_env=worker * self.envs_per_worker),
            )
            for worker, row in enumerate(first_rows)
        ]

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Put a policy into Ray's store, once for all actors.

        Raises:
            HotloopError: The store has no room.
        """
        self._version = snapshot.version
        self.publication += 1
        try:
            self.weights = self._ray.put(snapshot)
        except self._ray.exceptions.RayError as error:  # a full store or disk raises several types
            size = sum(array.nbytes for array in snapshot.params.values())
            raise HotloopError(
                f"Ray's store has no room for weights of {size:,} bytes ({first_line(error)}): "
                "give it more, `ray start --object-store-memory BYTES`"
            ) from error

    def call(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Make the calls after the parts that are requested. See `Transport.call`."""
        actors, errors = self._envs.actors, self._ray.exceptions
        pickled_calls = [pickle_call(call) for call in calls]
        results: dict[int, Any] = {}
        sent: dict[int, tuple[Any, Any]] = {}  # actor and reference by worker
        while len(results) < len(actors):
            for worker, actor in enumerate(actors):
                if worker not in results and sent.get(worker, (None,))[0] is not actor:
                    sent[worker] = actor, actor.call_envs.remote(pickled_calls[worker])
            workers = {ref: worker for worker, (_, ref) in sent.items() if worker not in results}
            ready, _ = self._ray.wait(list(workers), num_returns=1, timeout=_POLL_S)
            for ref in ready:
                worker = workers[ref]
                try:
                    results[worker] = self._ray.get(ref)
                except errors.ActorDiedError as error:
                    if self._fleet is None:
                        raise actor_error(error, f"worker {worker}") from error
                    if actors[worker] is sent[worker][0]:  # not replaced yet
                        self._replace(worker, self._death_reason(worker, error))
                except errors.ActorUnavailableError:
                    del sent[worker]
                    time.sleep(_RETRY_S)
                except errors.RayError as error:
                    raise actor_error(error, f"worker {worker}") from error
            if self._fleet is not None:
                self._poll(0.0)
        return [results[worker] for worker in range(len(actors))]

    def grant(self, limits: RowLimits) -> None:
        """Request parts up to the limits."""
        self._total_limit = limits.total
        for actor, limit in zip(self._actors, limits.rows, strict=True):
            actor.limit = limit
        num_ahead = NUM_AHEAD
        if self._options.overlap:
            # Request the rows that an actor collects while the learner is away, as long as the last
            # time. Without them, 24 actors and a learner that takes a fifth of the time had 94.5 %
            # of the possible transitions per second.
            now = time.monotonic()
            share = self._max_gap_s / max(now - self._granted_at_s, 1e-3)
            num_ahead += math.ceil(share * self._options.num_steps / self._part_rows)
            num_ahead = min(num_ahead, self._max_ahead)
            self._granted_at_s, self._max_gap_s = now, 0.0
        self._request_parts(num_ahead)

    def finished_rows(self) -> list[int]:
        """Return the row of each worker after the last one that has arrived."""
        return [actor.finished_row for actor in self._actors]

    def collected_rows(self, *, is_over: bool) -> list[int]:
        """Return the same as `finished_rows`, since unfinished rows are not known here."""
        return self.finished_rows()

    def version(self, worker: int, row: int) -> int:
        """Return the version of a row that has arrived."""
        version = self._actors[worker].parts.version(row)
        assert version is not None
        return version

    def oldest_version(self, worker: int, row: int) -> int | None:
        """Return the version of the part or request with row `row`, or of the next one."""
        actor = self._actors[worker]
        version = actor.parts.version(row)
        # Do not wait for a silent actor. Its parts are dropped if they are too old.
        if version is None and actor.silent_since_s is None:
            requests = (request.version for request in actor.requests if row < request.stop)
            version = next(requests, None)
        return version

    def read(self, worker: int, start: int, stop: int) -> WorkerRows:
        """Return rows of the first parts, and forget the parts that were read entirely."""
        self._actors[worker].next_row = stop
        return self._actors[worker].parts.read(start, stop)

    def poll(self) -> None:
        """Fetch parts that are ready, replace lost actors, and check silent actors."""
        self._poll(0.0)

    def wait(self, num_rows: int) -> None:
        """Wait for the next part, at most for a second."""
        self._poll(_POLL_S)

    def recordings(self) -> Sequence[Recording]:
        """Return the recordings of all nodes."""
        if not self._envs.timing_dir:
            return ()
        self._watches.fetch()
        return recordings_of_this_run(self._envs.timing_dir)

    def node(self, worker: int) -> str:
        """Return the last node of an actor, empty before its first part."""
        return self._actors[worker].node if self._actors else ""

    # --- setup ------------------------------------------------------------------------------------

    def setup_of(self, worker: int) -> ActorSetup:
        """Return the collection settings and the first row of an actor for this policy."""
        assert self._fleet is not None
        policy, row = self._policy, self._actors[worker].finished_row
        return ActorSetup(
            network=policy.network.to_json(),
            exploration=policy.exploration and policy.exploration.to_json(),
            num_rows=self._part_rows,
            num_kept=self._max_ahead,
            seed=self._options.seed,
            start=self._fleet.start_of(worker, row),
            inference=self._envs.inference_of(worker),
        )

    def _send_setup(self, worker: int) -> None:
        """Send the settings of all policies to an actor."""
        actor, setup = self._actors[worker], self.setup_of(worker)
        actor.setup = self._envs.actors[worker].set_up.remote(
            setup,
            self.weights,
            [follower.setup_of(worker) for follower, _ in self.followers],
            *(follower.weights for follower, _ in self.followers),
        )
        actor.started_at_s = time.monotonic()
        # The step timeout watches the replay of a resumed run's episodes, which may take longer.
        actor.setup_timeout_s = (
            None if setup.start.resume is not None else self._envs.start_timeout_s
        )

    def _finish_setup(self, worker: int) -> None:
        """Fetch the answer to an actor's setup, and compare its spaces.

        Raises:
            SpaceError: They differ from those of worker 0.
            RayError: The actor failed or is lost.
        """
        assert self._fleet is not None
        actor = self._actors[worker]
        info, results = self._ray.get(actor.setup)
        actor.setup, actor.pid, actor.node = None, info.pid, info.node
        actor.started_at_s = time.monotonic()
        self._watches.add_node(info.node)
        compare_spaces(self._envs, info, worker)
        fleets = [self._fleet, *(fleet for _, fleet in self.followers)]
        for fleet, resumed in zip(fleets, results, strict=True):
            if resumed is not None:
                fleet.on_resumed(worker, *resumed)

    # --- requests ---------------------------------------------------------------------------------

    def _request_parts(self, num_ahead: int = NUM_AHEAD) -> None:
        """Request up to `num_ahead` parts from every actor, as far as the limits permit."""
        total = sum(actor.finished_row for actor in self._actors)
        is_total = self._total_limit is not None and total >= self._total_limit
        for worker, actor in enumerate(self._actors):
            while actor.silent_since_s is None and len(actor.requests) < num_ahead:
                is_first = actor.requested_row == actor.next_row
                start, stop = actor.requested_row, actor.requested_row + self._part_rows
                # A short part is requested only if the learner would wait without it.
                if start >= actor.limit or (not is_first and (is_total or stop > actor.limit)):
                    break
                actor.requested_row = min(stop, actor.limit)
                self._request(worker, start, actor.requested_row)

    def _request(self, worker: int, start: int, stop: int) -> None:
        """Request some rows from a worker's actor."""
        actor = self._actors[worker]
        # Ray does not resolve a reference in a list: the inference actor fetches the weights.
        weights_ref = [] if self._envs.inference_of(worker) is None else [self.weights]
        weights = WeightsRef(self.publication, weights_ref)
        ref = self._envs.actors[worker].collect.remote(
            self.weights,
            start,
            stop,
            weights,
            [follower.publication for follower, _ in self.followers],
            *(follower.weights for follower, _ in self.followers),
        )
        if not actor.requests and actor.setup is None:
            actor.started_at_s = time.monotonic()
        actor.requests.append(PartRequest(ref, self._version, start, stop))

    def _poll(self, timeout_s: float) -> None:
        self._max_gap_s = max(self._max_gap_s, time.monotonic() - self._polled_at_s)
        self._receive(timeout_s)
        self._polled_at_s = time.monotonic()

    def _receive(self, timeout_s: float) -> None:
        """Wait for a part, fetch all that are ready, and request further ones."""
        self._head.check()
        self._watches.poll()
        self._check_silent()
        workers: dict[Any, int] = {}
        for worker, actor in enumerate(self._actors):
            if actor.setup is not None:
                workers[actor.setup] = worker
            elif actor.requests:
                workers[actor.requests[0].ref] = worker
        if not workers:
            if timeout_s:
                time.sleep(min(timeout_s, 0.1))  # all actors are silent
            return
        ready, _ = self._ray.wait(list(workers), num_returns=1, timeout=timeout_s)
        if ready:  # take all other ready parts too
            ready, _ = self._ray.wait(list(workers), num_returns=len(workers), timeout=0.0)
        for ref in ready:
            self._fetch(workers[ref], ref)
        self._request_parts()

    def _fetch(self, worker: int, ref: Any) -> None:
        """Fetch a part or the answer to a setup, or handle the reason for its absence."""
        actor, errors = self._actors[worker], self._ray.exceptions
        try:
            if actor.setup is not None:
                self._finish_setup(worker)
                return
            answer: ActorPart = self._ray.get(ref)
        except errors.ActorUnavailableError:
            if actor.setup is not None:  # an actor without setup has no finished parts
                self._replace(worker, "it can't be reached")
                return
            self._mark_silent(worker, "it can't be reached")
            actor.unanswered = [(request.start, request.stop) for request in actor.requests]
            actor.requests.clear()
            return
        except errors.ActorDiedError as error:
            self._replace(worker, self._death_reason(worker, error))
            return
        except errors.RayTaskError as error:
            if isinstance(error.cause, TooManyFailures):
                self._count_env_failures(worker, error.cause.args[0])  # raises
            if not isinstance(error.cause, RecoverableFailure):
                raise actor_error(error, f"worker {worker}") from error
            self._replace(worker, *error.cause.args)
            return
        except (errors.ObjectLostError, errors.OutOfDiskError) as error:
            self._replace(worker, f"its part is lost ({first_line(error)})")
            return
        except errors.RayError as error:
            raise actor_error(error, f"worker {worker}") from error
        now = time.monotonic()
        actor.requests.popleft()
        actor.max_part_s = max(actor.max_part_s, now - actor.started_at_s)
        actor.started_at_s, actor.silent_since_s = now, None
        self.receive_part(worker, answer.part)
        for (follower, _), part in zip(self.followers, answer.followers, strict=True):
            follower.receive_part(worker, part)
        if answer.inference is not None:
            self._envs.on_answer(worker, answer.inference)
        self._count_env_failures(worker, answer.failures)

    def receive_part(self, worker: int, part: FragmentPart) -> None:
        """Store the next part of an actor."""
        actor = self._actors[worker]
        actor.parts.append(part)
        actor.finished_row, actor.last_episode = part.stop, part.last_episode

    def _count_env_failures(self, worker: int, failures: Sequence[tuple[str, str]]) -> None:
        for message, traceback in failures:
            self.failures.count_env(worker, message, traceback)

    # --- silence ----------------------------------------------------------------------------------

    def _check_silent(self) -> None:
        """Check actors that have not answered for long, and repeat requests to silent actors."""
        now = time.monotonic()
        for worker, actor in enumerate(self._actors):
            if actor.setup is not None:
                self._check_setup(worker)
                continue
            if actor.silent_since_s is None:
                if not actor.requests:
                    continue
                if now - actor.started_at_s < max(_SILENT_S, 3 * actor.max_part_s):
                    continue
                if now - actor.checked_at_s >= _SILENT_S:
                    actor.checked_at_s = now
                    state = self._watches.state(actor.node, actor.pid)
                    if state in ("?", "T", "t"):
                        reason = "its node does not answer" if state == "?" else "it is stopped"
                        self._mark_silent(worker, reason)
                continue
            if now - actor.silent_since_s > self._unreachable_s:
                is_option = self._unreachable_s < _UNREACHABLE_S
                limit = f"{self._unreachable_s:g} s{' (`step_timeout_s`)' * is_option}"
                self._replace(worker, f"it could not be reached for {limit}")
            elif actor.unanswered and now - actor.checked_at_s >= _RETRY_S:
                # The actor sends a finished part again without collecting it again.
                actor.checked_at_s = now
                unanswered, actor.unanswered = actor.unanswered, []
                for start, stop in unanswered:
                    self._request(worker, start, stop)

    def _check_setup(self, worker: int) -> None:
        """Warn of an actor whose setup takes long, and replace it after its time limit."""
        actor, now = self._actors[worker], time.monotonic()
        limit_s, elapsed_s = actor.setup_timeout_s, now - actor.started_at_s
        hint = "its node has no room, or making its environments hangs: check `ray status`"
        if limit_s is not None and elapsed_s > limit_s:
            self._replace(worker, f"it was not ready within {limit_s:g} s: {hint}")
        elif elapsed_s > _SLOW_START_S and actor.checked_at_s < actor.started_at_s:
            actor.checked_at_s = now
            limit = "" if limit_s is None else f" up to {limit_s:g} s"
            warnings.warn(
                f"worker {worker}: it is not ready after {_SLOW_START_S:g} s; waiting for it"
                f"{limit}: {hint}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _mark_silent(self, worker: int, reason: str) -> None:
        """Record that an actor can't be reached, and warn once."""
        actor = self._actors[worker]
        actor.checked_at_s = time.monotonic()
        if actor.silent_since_s is None:
            actor.silent_since_s = actor.checked_at_s
            warnings.warn(
                f"worker {worker}: {reason}; waiting for it up to {self._unreachable_s:g} s",
                RuntimeWarning,
                stacklevel=2,
            )

    def _death_reason(self, worker: int, error: Exception) -> str:
        reason = f"its actor died ({first_line(error)})"
        actor, max_step_s = self._actors[worker], self._envs.max_step_s
        elapsed_s = time.monotonic() - actor.started_at_s
        is_alone = self._envs.inference_of(worker) is None  # otherwise inference may be slow
        if max_step_s is not None and elapsed_s > max_step_s and is_alone:
            step_s = self._envs.step_timeout_s
            place = "a part" if actor.setup is None else "its setup"
            reason += (
                f", {elapsed_s:.0f} s into {place}; a step of an environment that takes more than "
                f"{step_s:g} s (`step_timeout_s`) ends it"
            )
        return reason

    def _replace(self, worker: int, reason: str, traceback: str = "") -> None:
        """Start another actor in place of a lost one, and repeat the open requests."""
        assert self._fleet is not None
        actor, actors = self._actors[worker], self._envs.actors
        # The lost actor had begun some rows of one part after its setup, and no later part.
        num_lost = min(self._part_rows, actor.requested_row - actor.finished_row)
        num_lost *= actor.setup is None
        row = actor.requested_row = actor.finished_row
        episode = actor.last_episode + 1
        for _, follower in self.followers:
            follower.cut(worker, row, num_lost, episode)
        start = self._fleet.on_lost(worker, row, num_lost, episode, reason, traceback)
        actor.requests.clear()
        actor.unanswered.clear()
        actor.silent_since_s = None
        with contextlib.suppress(Exception):
            self._ray.kill(actors[worker])
        actors[worker] = self._envs.start(worker, start.first_episode)
        self._send_setup(worker)
        self._request_parts()
