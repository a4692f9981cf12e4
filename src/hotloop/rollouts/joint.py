"""Rollouts of several policies that act in the same games, each of which is stepped once.

The first policy's rollout collects as a single one does. Within each of its steps, after its
actions are chosen, the next policy's rollout collects one row of its own, and so on. The last one
steps the games.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.envs.pettingzoo_envs import PettingZooEnvs, resume_views
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.inline import InlineEnvironments, InlineRollout
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.timing import span
from hotloop.timing.policy_shares import policy_span
from hotloop.types import Episode, Fragment, RunningEpisode


class JointGames:
    """The games of several policies, and their policies once they act.

    Args:
        views: a view of the same games for each policy, by name. The first one leads.

    Attributes:
        views: the same.
        policies: the acting policies by name, added by their rollouts.
    """

    def __init__(self, views: Mapping[str, PettingZooEnvs]) -> None:
        self.views = views
        self.policies: dict[str, ActingPolicy] = {}
        self._rollouts: dict[str, JointRollout] = {}

    def resume(self, running: Mapping[str, Sequence[RunningEpisode]]) -> None:
        """Replay the running episodes of all policies' agents, which their rollouts then restore.

        Args:
            running: the episodes by policy, from checkpoints of the same iteration.
        """
        if running and all(running.values()):
            resume_views(list(self.views.values()), [running[name] for name in self.views])

    def environments(self, name: str) -> JointEnvironments:
        """Return the environments of one policy."""
        return JointEnvironments(self, name)

    def rollout(self, name: str, policy: ActingPolicy, options: CollectionOptions) -> JointRollout:
        """Return the rollout of a policy, and let it act after that of the previous policy."""
        rollout = JointRollout(
            name, self.views[name], policy, num_steps=options.num_steps, seed=options.seed
        )
        self.policies[name], self._rollouts[name] = policy, rollout
        names = list(self.views)
        if (number := names.index(name)) > 0:
            self.views[names[number - 1]].others = rollout
        return rollout


class JointEnvironments(InlineEnvironments):
    """The agents of one policy in games that it shares with others; see `InlineEnvironments`."""

    def __init__(self, games: JointGames, name: str) -> None:
        super().__init__([games.views[name]])
        self._games, self._name = games, name

    def rollout(self, policy: ActingPolicy, options: CollectionOptions) -> JointRollout:
        """See `InlineEnvironments.rollout`."""
        self.check(options)
        return self._games.rollout(self._name, policy, options)


class JointRollout(InlineRollout):
    """The rollout of one policy in games that it shares with others; see `InlineRollout`.

    A row of an agent that is absent counts as a transition here, so that all policies have the same
    share of their steps at any time.
    """

    def __init__(
        self,
        name: str,
        view: PettingZooEnvs,
        policy: ActingPolicy,
        *,
        num_steps: int,
        seed: int,
    ) -> None:
        super().__init__(view, policy, num_steps=num_steps, seed=seed)
        self._span = policy_span(name)
        self._view, self._num_collected = view, 0
        self._episodes: list[Episode] = []

    def reset(self) -> None:
        """See `Others.reset`."""
        with span(self._span):
            self._collectors[0].begin()

    def act(self) -> None:
        """See `Others.act`."""
        row = self._num_collected
        with span(self._span):
            self._collectors[0].collect(self._slots[0], row, row + 1)
        self._num_collected += 1

    def collect(self) -> list[Fragment]:
        """See `InlineRollout.collect`."""
        fragments = super().collect()
        self.num_transitions = self.vector_steps * self._view.num_envs
        # The first rollout may collect the next fragment before this run reports its iteration.
        self._episodes += self._view.pop_episodes()
        return fragments

    def pop_episodes(self) -> list[Episode]:
        """See `InlineRollout.pop_episodes`."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def _collect(self, collector: Collector, slot: Slot) -> None:
        if self._view.leads:
            super()._collect(collector, slot)
        else:
            if self._num_collected != self._num_steps:  # the first rollout has failed
                raise EnvironmentFailure("the run of the first policy in these games has ended")
            self._num_collected = 0
