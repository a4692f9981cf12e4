"""Rollouts of several policies that act in the same games, each of which is stepped once.

The first policy's rollout collects as a single one does. Within each of its steps, after its
actions are chosen, the next policy collects one row of its own, and so on. The last one steps the
games.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.envs.pettingzoo_envs import PettingZooEnvs, resume_views
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.follower import Follower
from hotloop.rollouts.inline import InlineEnvironments, InlineRollout
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.types import Episode, Fragment, RunningEpisode


class JointGames:
    """The games of several policies in this process, and their policies once they act.

    Args:
        groups: groups of games, each with a view of every policy by name. The first one leads.

    Attributes:
        policies: the acting policies by name, added by their rollouts.
    """

    def __init__(self, groups: Sequence[Mapping[str, PettingZooEnvs]]) -> None:
        self.groups = groups
        self.policies: dict[str, ActingPolicy] = {}

    def resume(self, running: Mapping[str, Sequence[RunningEpisode]]) -> None:
        """Replay the running episodes of all policies' agents, which their rollouts then restore.

        Args:
            running: the episodes by policy, from checkpoints of the same iteration.
        """
        if not running or not all(running.values()):
            return
        for number, views in enumerate(self.groups):
            episodes = [
                running[name][number * view.num_envs : (number + 1) * view.num_envs]
                for name, view in views.items()
            ]
            resume_views(list(views.values()), episodes)

    def environments(self, name: str) -> JointEnvironments:
        """Return the environments of one policy."""
        return JointEnvironments(self, name)

    def rollout(self, name: str, policy: ActingPolicy, options: CollectionOptions) -> JointRollout:
        """Return the rollout of a policy, and let it act after that of the previous policy."""
        names = list(self.groups[0])
        rollout = JointRollout(
            name,
            [views[name] for views in self.groups],
            policy,
            num_steps=options.num_steps,
            seed=options.seed,
        )
        self.policies[name] = policy
        if (number := names.index(name)) > 0:
            for views, follower in zip(self.groups, rollout.followers, strict=True):
                views[names[number - 1]].others = follower
        return rollout


class JointEnvironments(InlineEnvironments):
    """The agents of one policy in games that it shares with others; see `InlineEnvironments`."""

    def __init__(self, games: JointGames, name: str) -> None:
        super().__init__([views[name] for views in games.groups])
        self._games, self._name = games, name

    def rollout(self, policy: ActingPolicy, options: CollectionOptions) -> JointRollout:
        self.check(options)
        return self._games.rollout(self._name, policy, options)


class JointRollout(InlineRollout):
    """The rollout of one policy in games that it shares with others; see `InlineRollout`.

    A row of an agent that is absent counts as a transition here, so that all policies have the same
    share of their steps at any time.

    Attributes:
        followers: collectors of a policy that does not lead, one for each group of games.
    """

    def __init__(
        self,
        name: str,
        views: Sequence[PettingZooEnvs],
        policy: ActingPolicy,
        *,
        num_steps: int,
        seed: int,
    ) -> None:
        super().__init__(views, policy, num_steps=num_steps, seed=seed)
        self._views = views
        self._episodes: list[Episode] = []
        self.followers = [
            Follower(name, collector, slot)
            for collector, slot in zip(self._collectors, self._slots, strict=True)
        ]

    def collect(self) -> list[Fragment]:
        fragments = super().collect()
        self.num_transitions = self.vector_steps * sum(view.num_envs for view in self._views)
        # The first rollout may collect the next fragment before this run reports its iteration.
        self._episodes += super().pop_episodes()
        return fragments

    def pop_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def _collect(self, collector: Collector, slot: Slot) -> None:
        if self._views[0].leads:
            super()._collect(collector, slot)
            return
        follower = next(x for x in self.followers if x.collector is collector)
        if follower.next_row != self._num_steps:  # the first rollout has failed
            raise EnvironmentFailure("the run of the first policy in these games has ended")
        follower.next_row = 0
