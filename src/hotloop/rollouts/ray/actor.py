"""A Ray actor that steps a group of environments, and acts in them or has an actor compute."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hotloop import timing
from hotloop.base.children import add_module_paths
from hotloop.envs import EnvSpec, make_vec, seeded_generators
from hotloop.errors import EnvironmentFailure, HotloopError, MaskError, NonFiniteStep
from hotloop.policies import ActingPolicy, Exploration, PolicySnapshot, network_from_json
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.ray.group import MAX_AHEAD
from hotloop.rollouts.ray.inference import RemotePolicy, WeightsRef, writable
from hotloop.rollouts.ray.recording import RecordingOptions, start_recording
from hotloop.rollouts.ray.step_timeout import StepTimeout
from hotloop.rollouts.state import running_episodes, saved_hidden_states
from hotloop.timing import span
from hotloop.types import AFTER_LAST_STEP, PER_STEP, Array, Episode, Fragment


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """The options for making an actor's environments.

    Attributes:
        worker: Number of the worker.
        spec: Environments, importable by name.
        num_envs: Environments of this actor.
        timeout_s: Time limit in seconds for a step of all its environments. None: no limit.
        max_failures: Maximum number of environments that the actor replaces for one part.
        recording: Where the actor records.
        paths: Where the learner searches for modules.
    """

    worker: int
    spec: EnvSpec
    num_envs: int
    timeout_s: float | None
    max_failures: int
    recording: RecordingOptions
    paths: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ActorSetup:
    """The collection settings of an actor, and its first row.

    Attributes:
        network: Network as JSON.
        exploration: How the policy explores.
        num_rows: Rows of a part.
        seed: Seed of the action noise.
        first_env: Global index of its first environment.
        first_row: Steps of each of its environments so far.
        resume: Number and hash of each environment's episode in the run to resume. `arrays`
            contains their actions.
        inference: Actor that computes the network. None: this actor does.
    """

    network: Mapping[str, Any]
    exploration: Exploration | None
    num_rows: int
    seed: int
    first_env: int
    first_row: int
    resume: Sequence[tuple[int, str]] | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    inference: Any = None


class ActorInfo(NamedTuple):
    """The specifications of an actor's environments, and its node."""

    obs_spec: dict[str, Any]
    action_spec: dict[str, Any]
    can_replay: bool
    node: str


class FragmentPart(NamedTuple):
    """Rows of a worker, and the state of its environments after them.

    Attributes:
        fields: Arrays of a `Fragment` by name, not shared with later parts.
        version: Version of the acting policy.
        running: Number and length of each environment's running episode.
        episodes: Episodes that ended in the part.
        failures: Errors of environments that were replaced.
        node, pid: Node and process of the actor.
        inference: Node and process that computed the network. None: this actor.
    """

    fields: dict[str, Array]
    version: int
    running: list[tuple[int, int]]
    episodes: list[Episode]
    failures: list[str]
    node: str
    pid: int
    inference: tuple[str, int] | None


class RecoverableFailure(Exception):
    """An environment failed, but a new process may succeed."""


class TooManyFailures(EnvironmentFailure):
    """Environments failed more often than `max_failures` allows."""


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
        self._next_part = 0
        self._parts: deque[FragmentPart] = deque(maxlen=MAX_AHEAD)
        self._failures: list[str] = []
        self._waiting = contextlib.ExitStack()  # between two parts

        def on_failure(error: HotloopError) -> None:
            self._failures.append(str(error))
            if len(self._failures) > options.max_failures:  # it would try for ever
                raise TooManyFailures(
                    f"environments failed {len(self._failures)} times, but at most "
                    f"{options.max_failures} failures are allowed (`max_failures`); the last was "
                    f"{error}"
                )

        with span("make_envs"), seeded_generators(options.spec):
            self._envs = make_vec(
                options.spec, options.num_envs, on_failure=on_failure, num_threads=1
            )

    def ready(self) -> ActorInfo:
        """Return the specifications of the environments, and the actor's node."""
        envs = self._envs
        specs = envs.obs_spec.to_json(), envs.action_spec.to_json()
        return ActorInfo(*specs, envs.can_replay, self._node)

    def set_up(self, setup: ActorSetup, snapshot: PolicySnapshot) -> tuple[list[int], Array | None]:
        """Prepare for collection.

        Returns:
            The environments, 0 … N − 1, that could not be restored, and the observations. Without a
            run to resume an empty list and None.
        """
        network = network_from_json(dict(setup.network))
        if setup.inference is None:
            self._policy = ActingPolicy(network, writable(snapshot), exploration=setup.exploration)
        else:
            # The step timeout must not count the time of waiting for an answer.
            self._policy = RemotePolicy(
                network,
                snapshot,
                exploration=setup.exploration,
                inference=setup.inference,
                on_wait=self._step_timeout.stop,
            )
        self._publication = -1
        envs, first_env = self._envs, setup.first_env
        self._slot = Slot.allocate(setup.num_rows, envs.num_envs, network, first_env=first_env)
        self._collector = Collector(envs, self._policy, seed=setup.seed, first_env=first_env)
        self._collector.vector_steps = setup.first_row
        if setup.resume is None:
            return [], None
        arrays = setup.arrays
        restarted_envs = self._collector.resume(
            running_episodes(arrays, setup.resume), saved_hidden_states(arrays, 0, envs.num_envs)
        )
        return restarted_envs, self._collector.obs

    def collect(self, snapshot: PolicySnapshot, number: int, weights: WeightsRef) -> FragmentPart:
        """Collect the next rows, or return a recent part again that did not arrive.

        Args:
            snapshot: The acting policy.
            number: Number of the part, counted from 0.
            weights: Publication number of the snapshot, and its reference for the inference actor.

        Raises:
            RecoverableFailure: A new actor may succeed.
            HotloopError: A new actor would fail too.
        """
        if number < self._next_part:
            return self._parts[number - self._next_part]
        self._waiting.close()
        collector, slot, policy = self._collector, self._slot, self._policy
        is_remote = isinstance(policy, RemotePolicy)
        if is_remote:
            policy.set_weights(weights)
        if weights.publication != self._publication:
            with span("load_weights", kind="transfer"):
                policy.load(snapshot if is_remote else writable(snapshot))
            self._publication = weights.publication
        # Collect the rows under the step timeout.
        try:
            if not collector.has_begun:
                self._step_timeout.on_step_start()
                collector.begin()
            collector.collect(slot, 0, slot.fragment.num_steps, self._step_timeout)
        except (NonFiniteStep, MaskError, TooManyFailures):
            raise
        except EnvironmentFailure as error:
            raise RecoverableFailure(str(error)) from error
        finally:
            self._step_timeout.stop()
        collector.evaluate(slot, 0, slot.fragment.num_steps)
        # Copy the rows, so that the part can be sent again.
        failures, self._failures[:] = list(self._failures), []
        part = FragmentPart(
            fields={
                name: getattr(slot.fragment, name).copy() for name in (*PER_STEP, *AFTER_LAST_STEP)
            },
            version=policy.version,
            running=list(self._envs.running_episodes()),
            episodes=self._envs.pop_episodes(),
            failures=failures,
            node=self._node,
            pid=os.getpid(),
            inference=policy.answer_location if is_remote else None,
        )
        self._parts.append(part)
        self._next_part += 1
        self._waiting.enter_context(span("wait", kind="wait"))
        return part

    def close(self) -> None:
        """Close the environments and the recording."""
        self._waiting.close()
        self._envs.close()
        timing.stop()


def join_parts(parts: Sequence[FragmentPart], first_env: int) -> Fragment:
    """Return consecutive parts as one fragment."""
    fields: dict[str, Any] = dict(parts[0].fields)
    if len(parts) > 1:
        fields = {
            name: np.concatenate([part.fields[name] for part in parts]) for name in PER_STEP
        } | {name: parts[-1].fields[name] for name in AFTER_LAST_STEP}
    rows = [len(part.fields["reward"]) for part in parts]
    versions = np.repeat(np.array([part.version for part in parts]), rows)
    return Fragment(
        **fields, policy_version=int(versions.min()), versions=versions, first_env=first_env
    )
