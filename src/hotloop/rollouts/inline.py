"""Rollouts in the learner's process: act, step, store, without threads or copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.base.memory import require_memory
from hotloop.envs import VectorEnv
from hotloop.envs.closing import close_all
from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.failures import compare_spaces
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import (
    ActionHistory,
    GroupState,
    RolloutPosition,
    RolloutState,
    running_episodes,
    saved_hidden_states,
)
from hotloop.types import Array, Episode, Fragment


class InlineEnvironments:
    """Groups of environments that are stepped in this process, one after another.

    Args:
        groups: Vector environments. The policy acts for each group separately, as a worker does:
            a row of a batch of 16 and the same row of a batch of 4 differ in their last bits.

    Raises:
        SpaceError: The groups' spaces differ.
    """

    def __init__(self, groups: Sequence[VectorEnv]) -> None:
        self.groups = list(groups)
        for number, group in enumerate(self.groups):
            compare_spaces(self.groups[0], group, number)
        self.num_envs = sum(group.num_envs for group in groups)
        self.obs_spec, self.action_spec = groups[0].obs_spec, groups[0].action_spec
        self.can_replay = all(group.can_replay for group in groups)

    def rollout(self, policy: ActingPolicy, options: CollectionOptions) -> InlineRollout:
        """Return a rollout that collects with these environments.

        Raises:
            ConfigError: The options need workers.
        """
        self.check(options)
        return InlineRollout(self.groups, policy, num_steps=options.num_steps, seed=options.seed)

    def check(self, options: CollectionOptions) -> None:
        """Raise ConfigError if the options need workers."""
        if options.schedule != "barrier" or options.overlap:
            feature = "overlap" if options.overlap else f"the schedule '{options.schedule}'"
            raise ConfigError(
                f"{feature} needs workers: with `backend` 'inline' all environments take the same "
                "number of steps while the learner waits"
            )

    def close(self) -> None:
        """Close the environments."""
        close_all(self.groups)


class InlineRollout:
    """Collects fragments of T steps from groups of environments, one after another.

    Args:
        groups: Vector environments. A single one needs no list.
        policy: Acting policy. `publish` gives it new parameters between fragments.
        num_steps: T.
        seed: Seed of the action noise, which is a function of (seed, step, environment).

    Attributes:
        num_transitions: Transitions so far, over all environments.

    Raises:
        ConfigError: The fragments do not fit into memory.
    """

    def __init__(
        self,
        groups: VectorEnv | Sequence[VectorEnv],
        policy: ActingPolicy,
        *,
        num_steps: int,
        seed: int,
    ) -> None:
        self._groups = list(groups) if isinstance(groups, Sequence) else [groups]
        self.policy = policy
        self.num_transitions = 0
        self._num_steps = num_steps
        self._num_rows = self._num_valid = 0  # counted since this rollout was created
        self._collectors: list[Collector] = []
        self._slots: list[Slot] = []
        self._histories: list[ActionHistory] = []
        sizes = [envs.num_envs for envs in self._groups]
        require_memory(
            sum(Slot.size_bytes(num_steps, size, policy.network) for size in sizes),
            f"{sum(sizes):,} environments × {num_steps:,} steps",
            "use fewer environments, or shorter fragments (`num_steps`)",
        )
        first_env = 0
        for envs in self._groups:
            slot = Slot.allocate(num_steps, envs.num_envs, policy.network, first_env=first_env)
            self._slots.append(slot)
            self._collectors.append(Collector(envs, policy, seed=seed, first_env=first_env))
            self._histories.append(ActionHistory(num_steps, slot.fragment.action))
            first_env += envs.num_envs

    last_failure = ""  # a failure raises an error instead

    @property
    def vector_steps(self) -> int:
        """Number of steps of each environment so far."""
        return self._collectors[0].vector_steps

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        if not self._collectors[0].has_begun:
            return RolloutState()
        groups = [
            GroupState(
                vector_steps=collector.vector_steps,
                running=collector.envs.running_episodes(),
                obs=slot.fragment.last_obs.copy(),
                memory=slot.fragment.last_memory.copy(),
                history=history.chunks(),
            )
            for collector, slot, history in zip(
                self._collectors, self._slots, self._histories, strict=True
            )
        ]
        return RolloutState(num_transitions=self.num_transitions, groups=groups)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        episodes = running_episodes(arrays, position.episodes)
        if not episodes:
            return []
        restarted_envs: list[int] = []
        first = 0
        for collector, slot, history, vector_steps in zip(
            self._collectors, self._slots, self._histories, position.vector_steps, strict=True
        ):
            envs = collector.envs
            group_episodes = episodes[first : first + envs.num_envs]
            collector.vector_steps = vector_steps
            memory = saved_hidden_states(arrays, first, envs.num_envs)
            restarted_envs += [first + i for i in collector.resume(group_episodes, memory)]
            slot.fragment.last_obs[...] = collector.obs
            slot.fragment.last_memory[...] = collector.memory
            if envs.can_replay:
                history.resume(group_episodes, envs.running_episodes())
            first += envs.num_envs
        return restarted_envs

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`."""
        self.policy.load(snapshot)

    def collect(self) -> list[Fragment]:
        """Collect the next T steps of each environment.

        Returns:
            A fragment for each group. The next call overwrites them.

        Raises:
            EnvironmentFailure: An environment raised, or returned NaN or a wrong shape.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        fragments: list[Fragment] = []
        for collector, slot, history in zip(
            self._collectors, self._slots, self._histories, strict=True
        ):
            if not collector.has_begun:
                collector.begin()
            self._collect(collector, slot)
            collector.evaluate(slot, 0, self._num_steps)
            if collector.envs.can_replay:
                history.add(slot.fragment.action, collector.envs.running_episodes())
            num_valid = int(slot.fragment.valid.sum())
            self.num_transitions += num_valid
            self._num_valid += num_valid
            self._num_rows += slot.fragment.valid.size
            fragments.append(slot.fragment)
        return fragments

    def _collect(self, collector: Collector, slot: Slot) -> None:
        """Fill the slot."""
        collector.collect(slot, 0, self._num_steps)

    @property
    def group_sizes(self) -> list[int]:
        """See `Rollout.group_sizes`."""
        return [envs.num_envs for envs in self._groups]

    def call_groups(self, calls: Sequence[EnvCall]) -> list[Any]:
        """See `Rollout.call_groups`."""
        return [call.run(envs) for call, envs in zip(calls, self._groups, strict=True)]

    def updates_allowed(self) -> None:
        """Return None: experience is never too old, as the learner uses it at once."""

    def watch(self) -> None:
        """Do nothing: there are no other processes; see `Rollout.watch`."""

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        return [episode for c in self._collectors for episode in c.envs.pop_episodes()]

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        dropped = self._num_rows - self._num_valid
        return Accounting(
            collected=self._num_rows,
            trained=self._num_valid,
            dropped={"reset": dropped} if dropped else {},
        )

    def close(self) -> None:
        """Close the environments."""
        close_all(self._groups)
