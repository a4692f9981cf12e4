"""An actor of Ray that steps a group of environments, and acts in them or has them acted in."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hotloop import timing
from hotloop.envs import make_vec
from hotloop.errors import EnvironmentFailure, HotloopError, MaskError, NonFiniteStep
from hotloop.policies import ActingPolicy, Exploration, PolicySnapshot, network_from_json
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.ray.alarm import Alarm
from hotloop.rollouts.ray.group import MOST_AHEAD
from hotloop.rollouts.ray.inference import AskingPolicy, Weights, owned
from hotloop.rollouts.ray.recording import Recorded, record
from hotloop.rollouts.state import memory_of, running_episodes
from hotloop.timing import span
from hotloop.types import PER_STEP, Array, Episode, Fragment


@dataclass(frozen=True, kw_only=True)
class Making:
    """What an actor makes its environments of.

    Attributes:
        worker: its number.
        env: as for `make_vec`.
        num_envs: of its own.
        options: for `make_vec`.
        longest_s: that a step of all its environments may take; None: any time.
        recorded: where it records.
    """

    worker: int
    env: str
    num_envs: int
    options: Mapping[str, Any]
    longest_s: float | None
    recorded: Recorded


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an actor collects, and from which row on.

    Attributes:
        network: what acts, as JSON.
        exploration: fields of an `Exploration`.
        num_rows: of a part.
        seed: of the noise for acting.
        first_env: number of its first environment, counted over all workers.
        first_row: steps of each of its environments so far.
        resume: number and hash of each environment's episode, from which another run is gone on
            with; `arrays` has their actions.
        inference: the actor that computes the network; None: this one does.
    """

    network: Mapping[str, Any]
    exploration: Mapping[str, Any] | None
    num_rows: int
    seed: int
    first_env: int
    first_row: int
    resume: Sequence[tuple[int, str]] | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    inference: Any = None


class Ready(NamedTuple):
    """What an actor says once its environments are made."""

    obs_spec: dict[str, Any]
    action_spec: dict[str, Any]
    can_replay: bool
    node: str


class Part(NamedTuple):
    """Rows of a worker, and where its environments are after them.

    Attributes:
        fields: arrays of a `Fragment`, by name; memory of their own.
        version: of the policy that acted.
        running: number and length of each environment's running episode.
        episodes: that ended in it.
        failures: what environments raised that were made anew.
        node, pid: where it was made.
        inference: node and process of who computed the network; None: the same.
    """

    fields: dict[str, Array]
    version: int
    running: list[tuple[int, int]]
    episodes: list[Episode]
    failures: list[str]
    node: str
    pid: int
    inference: tuple[str, int] | None


class Lost(Exception):
    """An environment failed in a way that another process may mend; the message tells it."""


class Actor:
    """Steps environments of its own, by the weights that it is handed.

    Args:
        making: what they are made of.
    """

    def __init__(self, making: Making) -> None:
        os.environ["HOTLOOP_WORKER"] = str(making.worker)
        self._node = record(making.recorded)
        self._alarm = Alarm(making.longest_s)
        self._next_part = 0
        self._parts: deque[Part] = deque(maxlen=MOST_AHEAD)
        self._failures: list[str] = []
        self._waiting = contextlib.ExitStack()  # between two parts

        def on_failure(error: HotloopError) -> None:
            self._failures.append(str(error))

        with span("make_envs"):
            self._envs = make_vec(
                making.env, making.num_envs, on_failure=on_failure, num_threads=1, **making.options
            )

    def ready(self) -> Ready:
        """Tell what the environments are like."""
        envs = self._envs
        specs = envs.obs_spec.to_json(), envs.action_spec.to_json()
        return Ready(*specs, envs.can_replay, self._node)

    def set_up(self, plan: Plan, snapshot: PolicySnapshot) -> tuple[list[int], Array | None]:
        """Get ready to collect.

        Returns:
            Where another run is gone on with: the environments, 0 … N − 1, that could not be
            brought there, and what is observed.
        """
        network = network_from_json(dict(plan.network))
        explores = None
        if plan.exploration is not None:
            fields = {**plan.exploration, "epsilon": tuple(plan.exploration["epsilon"])}
            explores = Exploration(**fields)
        if plan.inference is None:
            self._policy = ActingPolicy(network, owned(snapshot), exploration=explores)
        else:
            # Who waits for an answer does not step: that is no step that takes too long.
            self._policy = AskingPolicy(
                network,
                snapshot,
                exploration=explores,
                inference=plan.inference,
                on_wait=self._alarm.rest,
            )
        self._publication = -1
        envs, first_env = self._envs, plan.first_env
        self._slot = Slot.allocate(plan.num_rows, envs.num_envs, network, first_env=first_env)
        self._collector = Collector(envs, self._policy, seed=plan.seed, first_env=first_env)
        self._collector.vector_steps = plan.first_row
        if plan.resume is None:
            return [], None
        arrays = plan.arrays
        restarted = self._collector.resume(
            running_episodes(arrays, plan.resume), memory_of(arrays, 0, envs.num_envs)
        )
        return restarted, self._collector.obs

    def collect(self, snapshot: PolicySnapshot, number: int, weights: Weights) -> Part:
        """Make the next rows, or return again what was made already and did not arrive.

        Args:
            snapshot: that acts.
            number: of the part, counted from 0.
            weights: the number of its publication, and for who computes the network where it lies.

        Raises:
            Lost: another actor may do better.
            HotloopError: none would.
        """
        if number < self._next_part:
            return self._parts[number - self._next_part]
        self._waiting.close()
        collector, slot, policy = self._collector, self._slot, self._policy
        asks = isinstance(policy, AskingPolicy)
        if asks:
            policy.read(weights)
        if weights.publication != self._publication:
            with span("load_weights", kind="transfer"):
                policy.load(snapshot if asks else owned(snapshot))
            self._publication = weights.publication
        try:
            if not collector.has_begun:
                self._alarm.begins()
                collector.begin()
            collector.collect(slot, 0, slot.fragment.num_steps, self._alarm)
        except (NonFiniteStep, MaskError):
            raise
        except EnvironmentFailure as error:
            raise Lost(str(error)) from error
        finally:
            self._alarm.rest()
        collector.evaluate(slot, 0, slot.fragment.num_steps)
        failures, self._failures[:] = list(self._failures), []
        part = Part(
            fields={
                name: getattr(slot.fragment, name).copy()
                for name in (*PER_STEP, "last_obs", "last_memory")
            },
            version=policy.version,
            running=list(self._envs.running()),
            episodes=self._envs.pop_episodes(),
            failures=failures,
            node=self._node,
            pid=os.getpid(),
            inference=policy.answered_by if asks else None,
        )
        self._parts.append(part)
        self._next_part += 1
        self._waiting.enter_context(span("wait", kind="wait"))
        return part

    def close(self) -> None:
        """Close the environments; what was recorded is whole."""
        self._waiting.close()
        self._envs.close()
        timing.stop()


def joined(parts: Sequence[Part], first_env: int) -> Fragment:
    """Return the rows of parts that follow each other as one fragment."""
    fields: dict[str, Any] = dict(parts[0].fields)
    if len(parts) > 1:
        fields = {
            name: np.concatenate([part.fields[name] for part in parts]) for name in PER_STEP
        } | {name: parts[-1].fields[name] for name in ("last_obs", "last_memory")}
    rows = [len(part.fields["reward"]) for part in parts]
    versions = np.repeat(np.array([part.version for part in parts]), rows)
    return Fragment(
        **fields, policy_version=int(versions.min()), versions=versions, first_env=first_env
    )
