"""Rollouts of several policies that act in the same games in workers; see `joint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy
from hotloop.rollouts.fleet import FleetRollout, Transport
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import RolloutPosition
from hotloop.types import Array, Fragment


class Workers(Protocol):
    """Processes or actors that step games for several policies."""

    num_workers: int
    can_replay: bool

    def rollout(
        self,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        num_envs: int,
        make: Callable[..., Any],
    ) -> Any:
        """Return the rollout of the next policy, in the order in which they act.

        Args:
            policy: Acting policy.
            options: Collection options.
            num_envs: Its agents in each worker.
            make: Makes the rollout; see `FleetRollout`.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class JointWorkers:
    """The games of several policies in workers, and their policies once they act.

    Args:
        workers: the workers.
        num_envs: the agents of each policy over all games, by name. The first one leads.
        spaces: the spaces of each policy.
        checkpoints: the arrays and the position of each policy's rollout in the checkpoint to
            resume; see `Rollout.restore`. Empty for a new training.

    Attributes:
        policies: the acting policies by name, added by their rollouts.
    """

    def __init__(
        self,
        workers: Workers,
        num_envs: Mapping[str, int],
        spaces: Mapping[str, Spaces],
        checkpoints: Mapping[str, tuple[Mapping[str, Array], RolloutPosition]],
    ) -> None:
        self.policies: dict[str, ActingPolicy] = {}
        self.workers, self.checkpoints = workers, checkpoints
        self.rollouts: dict[str, JointFleet] = {}
        self._num_envs, self._spaces = num_envs, spaces

    def environments(self, name: str) -> PolicyWorkers:
        """Return the environments of one policy."""
        return PolicyWorkers(self, name, self._num_envs[name], self._spaces[name])


class PolicyWorkers:
    """The agents of one policy in games of workers that it shares with others.

    Attributes:
        num_envs, obs_spec, action_spec, can_replay: See `Environments`.
    """

    def __init__(self, games: JointWorkers, name: str, num_envs: int, spaces: Spaces) -> None:
        self.num_envs, self.can_replay = num_envs, games.workers.can_replay
        self.obs_spec, self.action_spec = spaces.obs_spec, spaces.action_spec
        self._games, self._name = games, name
        self.close = games.workers.close

    def rollout(self, policy: ActingPolicy, options: CollectionOptions) -> JointFleet:
        """See `Environments.rollout`.

        Raises:
            ConfigError: The options let policies take different numbers of steps.
        """
        if options.schedule != "barrier":
            raise ConfigError(
                f"several policies take the same steps, got `schedule` '{options.schedule}': set "
                "`schedule` to 'barrier', or for appo to 'lag:1'"
            )
        games, workers = self._games, self._games.workers

        def make(*args: Any, **kwargs: Any) -> JointFleet:
            return JointFleet(games, *args, **kwargs)

        rollout: JointFleet = workers.rollout(
            policy, options, num_envs=self.num_envs // workers.num_workers, make=make
        )
        games.policies[self._name], games.rollouts[self._name] = policy, rollout
        return rollout


class JointFleet(FleetRollout):
    """The rollout of one policy in games of workers that it shares with others.

    A row of an agent that is absent counts as a transition here; see `JointRollout`.
    """

    def __init__(
        self,
        games: JointWorkers,
        transport: Transport,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        close: Callable[[], None],
    ) -> None:
        super().__init__(transport, policy, options, close=close)
        self._games = games

    def collect(self) -> list[Fragment]:
        fragments = super().collect()
        self.num_transitions = self.transport.envs_per_worker * sum(self._progress.next_rows)
        return fragments

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `FleetRollout.restore`. The workers restore the games of all policies together."""
        for name, rollout in self._games.rollouts.items():
            rollout.prepare_restore(*self._games.checkpoints[name])
        return super().restore(arrays, position)
