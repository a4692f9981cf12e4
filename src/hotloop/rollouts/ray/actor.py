"""A Ray actor that steps a group of environments. It computes actions itself or requests them."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hotloop import timing
from hotloop.base.children import add_module_paths
from hotloop.envs import ActionSpec, EnvSpec, ObsSpec, VectorEnv, make_vec, seeded_generators
from hotloop.envs.game_factory import assign_by_index, make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs, resume_views
from hotloop.errors import EnvironmentFailure, HotloopError, MaskError, NonFiniteStep
from hotloop.policies import ActingPolicy, PolicySnapshot, network_from_json
from hotloop.policies.exploration import exploration_from_json
from hotloop.rollouts.fleet import WorkerStart
from hotloop.rollouts.parts import FragmentPart, PartCollector
from hotloop.rollouts.ray.inference import RemotePolicy, WeightsRef, writable
from hotloop.rollouts.ray.recording import RecordingOptions, start_recording
from hotloop.rollouts.ray.step_timeout import StepTimeout
from hotloop.timing import span
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """The options for making an actor's environments.

    Attributes:
        worker: Number of the worker.
        spec: Environments, importable by name.
        num_envs: Environments of this actor.
        timeout_s: Time limit in seconds for a step of all its environments. None: no limit.
        max_failures: Maximum number of environments that the actor replaces for one part.
        recording: Options of the actor's timing recording.
        paths: Directories in which the learner searches for modules.
        agents: Index of each agent of several policies, by policy, in the order in which they act.
            Empty: there is one policy.
    """

    worker: int
    spec: EnvSpec
    num_envs: int
    timeout_s: float | None
    max_failures: int
    recording: RecordingOptions
    paths: Sequence[str]
    agents: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ActorSetup:
    """The collection settings of an actor, and its first row.

    Attributes:
        network: Network as JSON.
        exploration: How the policy explores, as JSON.
        num_rows: Maximum number of rows of a part.
        num_kept: Number of parts to keep, which the learner may request again.
        seed: Seed of the action noise.
        start: First row, and the episodes that run at this row.
        inference: Actor that computes the network. None: this actor does.
    """

    network: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
    num_rows: int
    num_kept: int
    seed: int
    start: WorkerStart
    inference: Any = None


class ActorInfo(NamedTuple):
    """The specifications of an actor's environments, its node and its process.

    With several policies, they are those of the first one.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    can_replay: bool
    node: str
    pid: int


class ActorPart(NamedTuple):
    """A part of a fragment, and what happened while it was collected.

    Attributes:
        part: Rows, and their episodes.
        failures: Text and traceback of the errors of environments that were replaced.
        inference: Node and process that computed the network. None: this actor.
        followers: Rows of the policies that act within the steps of the first one.
    """

    part: FragmentPart
    failures: list[tuple[str, str]]
    inference: tuple[str, int] | None
    followers: list[FragmentPart]


class RecoverableFailure(Exception):
    """An environment failed, but a new process may succeed; with the text and the traceback."""


class TooManyFailures(Exception):
    """Environments failed more often than `max_failures` allows; with `ActorPart.failures`."""


class Actor:
    """Steps its environments with the policy snapshots that it receives.

    Args:
        options: Environments and recording of the actor.
    """

    def __init__(self, options: ActorOptions) -> None:
        os.environ["HOTLOOP_WORKER"] = str(options.worker)
        add_module_paths(options.paths)
        self._node = start_recording(options.recording)
        self._step_timeout = StepTimeout(options.timeout_s)
        self._sent: deque[ActorPart]
        self._failures: list[tuple[str, str]] = []
        self._envs: VectorEnv | None = None
        self._views: dict[str, PettingZooEnvs] = {}  # of several policies, by name
        self._followers: list[PartCollector] = []
        self._loaded: list[tuple[ActingPolicy, int]] = []  # their policies and publications
        self._waiting = contextlib.ExitStack()  # the span between two parts
        self._options = options

    def ready(self) -> ActorInfo:
        """Make the environments once, and return their specifications and the actor's node.

        Ray keeps the type of errors raised here, unlike those of a constructor.
        """
        spec = self._options.spec
        if self._envs is None:
            num_envs, agents = self._options.num_envs, self._options.agents
            with span("make_envs"), seeded_generators(spec):
                if agents:
                    self._views = make_views(spec, num_envs, assign_by_index(agents))
                    self._envs = next(iter(self._views.values()))
                else:
                    self._envs = make_vec(
                        spec, num_envs, on_failure=self._on_failure, num_threads=1
                    )
        envs = self._envs
        specs = envs.obs_spec, envs.action_spec
        return ActorInfo(*specs, envs.can_replay, self._node, os.getpid())

    def _on_failure(self, error: HotloopError) -> None:
        self._failures.append(_describe(error))
        if len(self._failures) > self._options.max_failures:  # otherwise it would retry for ever
            raise TooManyFailures(self._failures)

    def set_up(
        self,
        setup: ActorSetup,
        snapshot: PolicySnapshot,
        setups: Sequence[ActorSetup] = (),
        *snapshots: PolicySnapshot,
    ) -> tuple[ActorInfo, list[tuple[list[int], Array] | None]]:
        """Prepare for collection.

        Args:
            setup: Settings of the only or of the first policy.
            snapshot: The acting policy.
            setups: Settings of the policies that act within its steps.
            snapshots: These policies.

        Returns:
            The results of `ready`, and of `PartCollector.resume` for each policy.
        """
        info = self.ready()
        assert self._envs is not None
        if setup.inference is None:
            self._policy = _acting_policy(setup, snapshot)
        else:
            # The step timeout must not count the time of waiting for an answer.
            self._policy = RemotePolicy(
                network_from_json(dict(setup.network)),
                snapshot,
                exploration=exploration_from_json(setup.exploration),
                inference=setup.inference,
                on_wait=self._step_timeout.stop,
            )
        self._publication = -1
        self._sent = deque(maxlen=setup.num_kept)
        self._parts = PartCollector(
            self._envs,
            self._policy,
            self._failures,
            num_rows=setup.num_rows,
            seed=setup.seed,
            first_env=self._options.worker * self._envs.num_envs,
            start=setup.start,
            on_step_start=self._step_timeout.on_step_start,
        )
        self._follow(setups, snapshots)
        collectors = [self._parts, *self._followers]
        try:
            if self._followers and setup.start.resume is not None:
                episodes = [collector.episodes() for collector in collectors]
                resume_views(list(self._views.values()), episodes, self._parts.on_step_start)
            return info, [collector.resume() for collector in collectors]
        finally:
            self._step_timeout.stop()

    def _follow(self, setups: Sequence[ActorSetup], snapshots: Sequence[PolicySnapshot]) -> None:
        """Let each of several policies act within the steps of the previous one."""
        self._followers, self._loaded = [], []
        pairs = itertools.pairwise(self._views.items())
        for ((_, previous), (name, view)), setup, snapshot in zip(
            pairs, setups, snapshots, strict=True
        ):
            policy = _acting_policy(setup, snapshot)
            collector = PartCollector(
                view,
                policy,
                (),
                num_rows=setup.num_rows,
                seed=setup.seed,
                first_env=self._options.worker * view.num_envs,
                start=setup.start,
            )
            previous.others = collector.follow(name)
            self._followers.append(collector)
            self._loaded.append((policy, -1))

    def collect(
        self,
        snapshot: PolicySnapshot,
        start: int,
        stop: int,
        weights: WeightsRef,
        publications: Sequence[int] = (),
        *snapshots: PolicySnapshot,
    ) -> ActorPart:
        """Collect the next rows, or return a recent part again if it did not arrive.

        Args:
            snapshot: The acting policy.
            start: Number of the first row.
            stop: Number after the last row.
            weights: Publication number of the snapshot, and its reference for the inference actor.
            publications: Publication numbers of the policies that act within the steps of the
                first one.
            snapshots: These policies.

        Raises:
            RecoverableFailure: A new actor may succeed.
            HotloopError: A new actor would fail too.
        """
        parts, policy = self._parts, self._policy
        if start < parts.next_row:
            return next(part for part in self._sent if part.part.start == start)
        self._waiting.close()
        is_remote = isinstance(policy, RemotePolicy)
        if is_remote:
            policy.set_weights(weights)
        if weights.publication != self._publication:
            with span("load_weights", kind="transfer"):
                policy.load(snapshot if is_remote else writable(snapshot))
            self._publication = weights.publication
        new = zip(self._followers, publications, snapshots, strict=True)
        for number, (follower, publication, following_snapshot) in enumerate(new):
            following_policy, loaded = self._loaded[number]
            if publication != loaded:
                following_policy.load(writable(following_snapshot))
                self._loaded[number] = following_policy, publication
            follower.prepare(stop - start)
        # Collect the rows under the step timeout.
        try:
            parts.collect(stop - start)
        except (NonFiniteStep, MaskError):
            raise
        except EnvironmentFailure as error:
            raise RecoverableFailure(*_describe(error)) from error
        finally:
            self._step_timeout.stop()
        part = parts.finish()
        failures, self._failures[:] = list(self._failures), []
        location = policy.answer_location if is_remote else None
        following_parts = [follower.finish() for follower in self._followers]
        actor_part = ActorPart(part, failures, location, following_parts)
        self._sent.append(actor_part)  # in case the learner does not receive it
        self._waiting.enter_context(span("wait", kind="wait"))
        return actor_part

    def call_envs(self, pickled_call: bytes) -> Any:
        """Make an `EnvCall` of the environments, and return its result."""
        self.ready()
        assert self._envs is not None
        return pickle.loads(pickled_call).run(self._envs)

    def close(self) -> None:
        """Close the environments and the recording."""
        self._waiting.close()
        if self._envs is not None:
            self._envs.close()
        timing.stop()


def _acting_policy(setup: ActorSetup, snapshot: PolicySnapshot) -> ActingPolicy:
    return ActingPolicy(
        network_from_json(dict(setup.network)),
        writable(snapshot),
        exploration=exploration_from_json(setup.exploration),
    )


def _describe(error: HotloopError) -> tuple[str, str]:
    """Return the text and the traceback of an error."""
    return str(error), "".join(traceback.format_exception(error))
