"""Matches between policies: games of several agents, in which each policy samples its actions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from hotloop.envs import EnvSpec
from hotloop.envs.game_factory import make_views
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.policies import ActingPolicy
from hotloop.training.assignment import assign
from hotloop.types import Array, Episode


class MatchResults(NamedTuple):
    """The results of the matches between all members of a population.

    Attributes:
        returns: mean return of each policy's agents in each game that ended, by policy and member.
        games: number of games between each pair of players, (P, P). Players are numbered policy by
            policy, and within a policy by member.
        scores: summed scores of the row's player against the column's, (P, P): 1 for the higher
            return, ½ for equal ones.
    """

    returns: dict[str, list[list[float]]]
    games: Array
    scores: Array


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
            number: index of the match, which seeds its games and actions.

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

    def play_all(
        self, policies: Mapping[str, Sequence[ActingPolicy]], first_number: int
    ) -> MatchResults:
        """Play a match for each pair of members of the first two policies.

        In round r, member i of the first policy plays with member i + r of the second policy,
        i + 2r of the third, …
        """
        num_members = len(next(iter(policies.values())))
        returns: dict[str, list[list[float]]] = {
            name: [[] for _ in range(num_members)] for name in policies
        }
        num_players = len(policies) * num_members
        games, scores = np.zeros((2, num_players, num_players))
        for index in range(num_members**2):
            round_, member = divmod(index, num_members)
            members = {name: (member + k * round_) % num_members for k, name in enumerate(policies)}
            players = {name: k * num_members + members[name] for k, name in enumerate(policies)}
            chosen = {name: policies[name][i] for name, i in members.items()}
            for result in self.play(chosen, first_number + index):
                for name, value in result.items():
                    returns[name][members[name]].append(value)
                for name, other in itertools.permutations(result, 2):
                    pair = players[name], players[other]
                    games[pair] += 1
                    scores[pair] += (np.sign(result[name] - result[other]) + 1) / 2
        return MatchResults(returns, games, scores)

    def close(self) -> None:
        """Close the games."""
        with contextlib.suppress(Exception):
            next(iter(self._views.values())).close()
