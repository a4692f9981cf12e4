"""Matches between policies: games of several agents, in which each policy samples its actions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from hotloop.envs import EnvSpec
from hotloop.envs.game_factory import make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.policies import ActingPolicy
from hotloop.training.assignment import assign
from hotloop.types import Episode


class _Player:
    """A policy that samples the actions of a view's agents; see `Others`.

    Args:
        view: the agents.
        policy: the policy.
        seed: seed of the actions.
        episode: index of the game, on which its seed depends.
    """

    def __init__(
        self, view: PettingZooEnvs, policy: ActingPolicy, seed: Sequence[int], episode: int
    ) -> None:
        self._view, self._policy, self._episode = view, policy, episode
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        """See `Others.reset`."""
        self._view.reset(self._episode)
        self._memory = self._policy.new_memory(self._view.num_envs)

    def act(self) -> None:
        """See `Others.act`."""
        obs, mask = self._view.next_inputs()
        step = self._view.step(self._policy.sample(obs, self._rng, self._memory, mask))
        if self._memory is not None:
            self._memory[step.terminated | step.truncated | ~step.valid] = 0.0


class Matches:
    """Games in which policies meet.

    Args:
        spec: the environments. Its seed determines the games and the actions.
        policies: see `assign`.
        num_games: number of games of a match, which are played at the same time.
        max_steps: steps after which a game that has not ended counts no more.

    Attributes:
        num_steps: steps of agents so far, over all matches.
    """

    def __init__(
        self,
        spec: EnvSpec,
        policies: str | Callable[[Any], str],
        num_games: int,
        max_steps: int,
    ) -> None:
        self._spec = dataclasses.replace(spec, stream="evaluation")
        self._views = make_views(self._spec, None, partial(assign, policies))
        num_agents = sum(view.num_envs for view in self._views.values())
        if num_games > 1:
            self.close()
            self._views = make_views(self._spec, num_games * num_agents, partial(assign, policies))
        self.shares = {name: len(view.agents) for name, view in self._views.items()}
        self._num_games, self._max_steps = num_games, max_steps
        self.num_steps = 0

    def play(self, policies: Mapping[str, ActingPolicy], number: int) -> list[dict[str, float]]:
        """Play a match.

        Args:
            policies: the policies by name.
            number: a number of the match, on which its games and actions depend.

        Returns:
            For each game that ended, the mean return of each policy's agents.
        """
        players = [
            _Player(view, policies[name], (self._spec.seed, number, k), number)
            for k, (name, view) in enumerate(self._views.items())
        ]
        views = list(self._views.values())
        for view, player in zip(views, players[1:], strict=False):
            view.others = player
        for view in views:
            view.pop_episodes()
        episodes: dict[str, list[Episode]] = {name: [] for name in self._views}
        players[0].reset()
        for _ in range(self._max_steps):
            players[0].act()
            self.num_steps += sum(view.num_envs for view in views)
            for name, view in self._views.items():
                episodes[name] += [x for x in view.pop_episodes() if x.episode == number]
            if all(episode > number for episode, _ in views[0].running_episodes()):
                break
        results: list[dict[str, float]] = []
        for game in range(self._num_games):
            returns = {
                name: [
                    x.undiscounted_return
                    for x in episodes[name]
                    if (x.env - self._spec.first_env) // len(view.agents) == game
                ]
                for name, view in self._views.items()
            }
            if all(returns.values()):
                results.append({name: fmean(values) for name, values in returns.items()})
        return results

    def close(self) -> None:
        """Close the games."""
        with contextlib.suppress(Exception):
            next(iter(self._views.values())).close()
