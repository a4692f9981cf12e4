"""Games of several agents, with PettingZoo's parallel interface: each agent is a row.

All agents of a game share one policy, so their spaces must be equal. Row g · K + k is agent k of
game g, in the order of `possible_agents`. A row is not `valid` in a step if its agent is not alive,
or appears in this step: then it has a first observation, but no transition. A game whose agents
have all ended is reset at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import ModuleType
from typing import Any

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs.attributes import call_each, set_each
from hotloop.envs.checks import (
    FLOAT32_MAX,
    as_flag,
    as_reward,
    check_call,
    check_reset,
    describe_bad_info,
    describe_bad_step,
    describe_non_finite,
    describe_range,
    describe_value,
    has_finite_square,
    warn_of_coarse_numbers,
)
from hotloop.envs.closing import close_all
from hotloop.envs.encoding import ActionDecoder, MismatchError, ObsEncoder
from hotloop.envs.episode_metrics import MAX_METRICS, EpisodeMetrics, is_metric_name
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.gymnasium_envs import GymnasiumEnvs
from hotloop.envs.spec import EnvSpec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MaskError,
    NonFiniteStep,
    SpaceError,
    UnknownNameError,
)
from hotloop.timing import span
from hotloop.types import Array, RunningEpisode, StepArrays

TEAM_RETURN = "team_return"
"""Metric of each agent's episode: the sum of the returns of all agents of its game."""
# Prefix of the metric that only the episodes of one agent have.
_AGENT_RETURN = "return_"


def find_game(env: str, module: ModuleType) -> Callable[..., Any]:
    """Return a module's function that makes a game, `parallel_env` or else `env`.

    Raises:
        UnknownNameError: the module has neither.
    """
    for name in ("parallel_env", "env"):
        if callable(make := getattr(module, name, None)):
            return make
    raise UnknownNameError(
        f"'{env}': the module '{module.__name__}' has neither `parallel_env` nor `env`: name a "
        "module of a PettingZoo environment, such as `pettingzoo:pettingzoo.sisl.pursuit_v5`"
    )


def is_game(env: Any) -> bool:
    """Return whether an environment has one of PettingZoo's interfaces."""
    pettingzoo = sys.modules.get("pettingzoo")  # imported by all environments that have them
    return pettingzoo is not None and isinstance(env, (pettingzoo.ParallelEnv, pettingzoo.AECEnv))


def as_parallel(env: Any, env_id: str) -> Any:
    """Return a game with the parallel interface.

    Raises:
        ConfigError: agents of the game act in turns.
    """
    from pettingzoo import AECEnv
    from pettingzoo.utils.conversions import aec_to_parallel

    if not isinstance(env, AECEnv):
        return env
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise ConfigError(
            f"{env_id}: all agents must act in each step, but those of this environment act in "
            "turns (its metadata has no `is_parallelizable`): choose an environment with a "
            "`parallel_env`"
        )
    return aec_to_parallel(env)


class PettingZooEnvs(GymnasiumEnvs):
    """G games of K agents each, as N = G · K rows.

    An agent's episode is its game: it begins and ends with the game, also if the agent dies before,
    comes back or appears later. Its metrics are `team_return`, and its own return under its name.

    Args:
        games: games with PettingZoo's parallel interface and equal agents.
        spec: the specification of `games`. Its `first_env` is the index of the first row.
        env_id: name of the games in messages.

    Raises:
        SpaceError: a space is not supported, or the spaces of agents differ.
    """

    can_replay = False

    def __init__(self, games: Sequence[Any], spec: EnvSpec, *, env_id: str) -> None:
        self._games = list(games)
        self._agents = agents = tuple(games[0].possible_agents)
        num_envs = len(games) * len(agents)
        spaces = _common_spaces(games[0], agents, spec, env_id)
        super().__init__(games[0], num_envs, spaces, spec, env_id)
        self._index = {agent: k for k, agent in enumerate(agents)}
        # The team's return, and that of each agent if there is room for all of them.
        self._agent_metrics = [f"{_AGENT_RETURN}{agent}" for agent in agents]
        names = [TEAM_RETURN, *self._agent_metrics]
        is_possible = all(map(is_metric_name, names))
        if len(names) + len(spec.log_info) > MAX_METRICS or not is_possible:
            self._agent_metrics = []
        self._metrics = EpisodeMetrics((*spec.log_info, TEAM_RETURN, *self._agent_metrics), env_id)
        self._totals = [EpisodeTotals() for _ in range(num_envs)]
        # The policy's next inputs. Those of dead agents are outdated.
        self._staged = np.zeros_like(self._step_buffers.obs)
        self._staged_mask = np.ones_like(self._step_buffers.mask)
        self._is_alive = [False] * num_envs
        self._returns, self._lengths = [0.0] * num_envs, [0] * num_envs
        self._game_lengths = [0] * len(games)
        # Values from each agent's last step.
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._raws: list[Any] = [None] * num_envs

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        for game in range(len(self._games)):
            self._begin_game(game)
        obs = self._new_obs()
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._step_buffers
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        next_obs, reward, terminated, truncated, valid, obs, next_mask, self.mask = out
        reward.fill(0.0)
        for flags in (terminated, truncated, valid):
            flags.fill(False)
        # Step all games, and copy the successors.
        actions = self._decoder.rows(action)
        ended_games = [
            game for game in range(len(self._games)) if self._step_game(game, actions, out)
        ]
        if not has_finite_square(self._staged):
            for i, raw in enumerate(self._raws):
                if self._is_alive[i] or valid[i]:
                    self._check(i, self._encoder.check_range, raw, self._staged[i])
        self._num_steps += 1
        next_obs[...] = self._staged
        next_mask[...] = self._staged_mask
        # End finished games, and begin the next ones.
        for game in ended_games:
            self._end_episodes(game)
            with span("env_reset"):
                self._begin_game(game)
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return out

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running_episodes`. The length is that of the game."""
        num_agents = len(self._agents)
        return [
            (episode, self._game_lengths[i // num_agents])
            for i, episode in enumerate(self._episode)
        ]

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`. All games start again, with the next seed."""
        for rows in map(self._rows, range(len(self._games))):
            last = max(episodes[i].episode for i in rows)
            for i in rows:
                self._episode[i] = last
        return self.reset(), list(range(self.num_envs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`. Each game is called once, and its rows have the same result."""
        results = call_each(self._games, name, *args, **kwargs)
        return tuple(result for result in results for _ in self._agents)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `VectorEnv.get_attr`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`. A game gets the value of its first row."""
        set_each(self._games, name, values, self.num_envs)

    def close(self) -> None:
        """See `VectorEnv.close`."""
        games, self._games = self._games, []
        self._episode = [-1] * self.num_envs
        close_all(games)

    def _rows(self, game: int) -> range:
        num_agents = len(self._agents)
        return range(game * num_agents, (game + 1) * num_agents)

    def _begin_game(self, game: int) -> None:
        rows = self._rows(game)
        first = rows.start
        for i in rows:
            self._episode[i] += 1
            self._is_alive[i], self._returns[i], self._lengths[i] = False, 0.0, 0
            self._infos[i] = {}
        self._game_lengths[game] = 0
        self._staged[first : rows.stop] = 0
        self._staged_mask[first : rows.stop] = True
        seed = self._spec.episode_seed(first, self._episode[first])
        try:
            result = self._games[game].reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._failure(
                first, f"`reset` raised {describe_exception(error)}", at_reset=True
            ) from error
        observations, infos = self._check(first, check_reset, result, at_reset=True)
        observations = self._as_dict(first, observations, "observations", at_reset=True)
        for agent, observation in observations.items():
            self._begin_agent(self._row(game, agent), observation, infos.get(agent, {}))
        if not observations:
            raise self._failure(
                first,
                "`reset` must return the observation of at least one agent, got none: begin each "
                "game with agents",
                at_reset=True,
            )
        is_first = self._first_env + first == 0 and self._episode[0] == 0
        if is_first and self._spec.stream == "training":
            warn_of_coarse_numbers(self._env_id, self.obs_spec, self._staged[rows.start])

    def _begin_agent(self, i: int, observation: Any, info: Any) -> None:
        """Set the first observation of an agent that appears."""
        at_reset = self._game_lengths[i // len(self._agents)] == 0
        self._is_alive[i] = True
        self._write(i, observation, info, at_reset=at_reset)
        problem = describe_non_finite(self._staged[i], self.obs_spec)
        if problem is not None:
            self._check(
                i, self._encoder.check_range, observation, self._staged[i], at_reset=at_reset
            )
            raise self._failure(i, problem, at_reset=at_reset)
        if self._may_warn and at_reset:
            self._warn_unused_masks(None, observation, info)
            self._may_warn = False

    def _step_game(self, game: int, actions: Sequence[Any], out: StepArrays) -> bool:
        """Step a game, write its rows except for observations, and return whether it has ended."""
        env, first = self._games[game], self._rows(game).start
        self._game_lengths[game] += 1
        chosen = {agent: actions[self._row(game, agent)] for agent in env.agents}
        try:
            result = env.step(chosen)
        except (Exception, SystemExit) as error:
            raise self._failure(first, f"`step` raised {describe_exception(error)}") from error
        try:
            observations, rewards, terminations, truncations, infos = (
                self._as_dict(first, values, name)
                for values, name in zip(result, _RESULTS, strict=True)
            )
        except (TypeError, ValueError):
            raise self._failure(first, describe_bad_step(result)) from None
        # Write the transitions of the agents that were alive.
        was_alive = self._is_alive[first : first + len(self._agents)]
        remaining = env.agents
        for k, agent in enumerate(self._agents):
            if not was_alive[k]:
                continue
            i = first + k
            try:
                observation, reward = observations[agent], rewards[agent]
                flags = terminations[agent], truncations[agent]
            except KeyError:
                raise self._failure(i, _UNFLAGGED.format(agent)) from None
            self._write_transition(i, observation, reward, flags, infos.get(agent, {}), out)
            if self._is_alive[i] and agent not in remaining:
                raise self._failure(i, _UNFLAGGED.format(agent))
        # Begin the agents that appeared, and find out whether any agent is left.
        leaving = {
            agent
            for agent in remaining
            if terminations.get(agent, False) or truncations.get(agent, False)
        }
        for agent, observation in observations.items():
            i = self._row(game, agent)
            if not was_alive[i - first] and agent in remaining and agent not in leaving:
                self._begin_agent(i, observation, infos.get(agent, {}))
        return len(leaving) == len(remaining)

    def _write_transition(
        self,
        i: int,
        observation: Any,
        reward: Any,
        flags: tuple[Any, Any],
        info: Any,
        out: StepArrays,
    ) -> None:
        value = self._check(i, as_reward, reward)
        if not -FLOAT32_MAX <= value <= FLOAT32_MAX and isfinite(value):
            raise self._failure(i, describe_range("the reward", value), kind=NonFiniteStep)
        is_terminated = self._check(i, as_flag, flags[0], "the termination")
        is_truncated = self._check(i, as_flag, flags[1], "the truncation")
        out.reward[i], out.valid[i] = value, True
        out.terminated[i], out.truncated[i] = is_terminated, is_truncated
        self._returns[i] += value
        self._lengths[i] += 1
        self._is_alive[i] = not (is_terminated or is_truncated)
        self._write(i, observation, info, is_last=is_terminated)

    def _end_episodes(self, game: int) -> None:
        """Store the episodes of the agents that took part in a game."""
        rows = self._rows(game)
        team_return = sum(self._returns[i] for i in rows)
        for i, agent_metric in zip(rows, self._agent_metrics or [""] * len(rows), strict=True):
            if self._lengths[i]:
                metrics = {TEAM_RETURN: team_return, agent_metric: self._returns[i]}
                info = {**self._infos[i], **metrics}
                self._finished.append(
                    self._ended_episode(i, info, self._returns[i], self._lengths[i])
                )

    def _write(
        self, i: int, observation: Any, info: Any, *, is_last: bool = False, at_reset: bool = False
    ) -> None:
        """Write an agent's observation and mask, and keep its `info`."""
        if not isinstance(info, Mapping):
            raise self._failure(i, describe_bad_info(info), at_reset=at_reset)
        self._raws[i], self._infos[i] = observation, info
        self._check(i, self._encoder.write, observation, self._staged[i], at_reset=at_reset)
        if self._masks is not None:
            try:
                self._masks.write_from(
                    None, observation, info, self._staged_mask[i], is_last=is_last
                )
            except MismatchError as error:
                raise self._failure(i, str(error), at_reset=at_reset, kind=MaskError) from None

    def _row(self, game: int, agent: Any) -> int:
        first = self._rows(game).start
        if agent not in self._index:
            raise self._failure(
                first,
                f"agents must be among `possible_agents`, {list(self._agents)}, got {agent!r}: "
                "name all agents there",
            )
        return first + self._index[agent]

    def _as_dict(
        self, i: int, values: Any, name: str, *, at_reset: bool = False
    ) -> Mapping[Any, Any]:
        if isinstance(values, Mapping):
            return values
        raise self._failure(
            i,
            f"the {name} must be a dictionary with agents as keys, got {describe_value(values)}: "
            "see PettingZoo's parallel interface",
            at_reset=at_reset,
        )

    def _check(
        self, i: int, function: Callable[..., Any], *values: Any, at_reset: bool = False
    ) -> Any:
        """Call a function whose ValueError describes a wrong value of row `i`."""
        try:
            return function(*values)
        except ValueError as error:
            kind = getattr(error, "failure_class", EnvironmentFailure)
            raise self._failure(i, str(error), at_reset=at_reset, kind=kind) from None

    def _failure(
        self,
        i: int,
        problem: str,
        *,
        at_reset: bool = False,
        kind: type[EnvironmentFailure] = EnvironmentFailure,
    ) -> EnvironmentFailure:
        game, k = divmod(i, len(self._agents))
        step = None if at_reset else self._game_lengths[game] - 1
        return self._episode_failure(i, f"agent {self._agents[k]!r}: {problem}", step, kind)


_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")
_UNFLAGGED = (
    "`step` must return an observation, a reward and two flags for agent {!r}, which was alive: "
    "return them, and set a flag when it leaves"
)


def _common_spaces(game: Any, agents: Sequence[Any], spec: EnvSpec, env_id: str) -> tuple[Any, Any]:
    """Return the spaces that all agents share, or raise SpaceError."""
    spaces = game.observation_space(agents[0]), game.action_space(agents[0])
    obs_spec = ObsEncoder(spaces[0], has_masks=spec.action_masks).spec
    action_spec = ActionDecoder(spaces[1]).spec
    for agent in agents[1:]:
        agent_spaces = game.observation_space(agent), game.action_space(agent)
        if (
            ObsEncoder(agent_spaces[0], has_masks=spec.action_masks).spec != obs_spec
            or ActionDecoder(agent_spaces[1]).spec != action_spec
        ):
            raise SpaceError(
                f"{env_id}: all agents must have the spaces of {agents[0]!r}, {spaces[0]} and "
                f"{spaces[1]}, to share one policy; {agent!r} has {agent_spaces[0]} and "
                f"{agent_spaces[1]}: pad them to make them equal, such as with SuperSuit's "
                "`pad_observations_v0` and `pad_action_space_v0`"
            )
    return spaces
