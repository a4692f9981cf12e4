"""Games of several agents, with PettingZoo's parallel interface: each agent is a row.

All agents of a game share one policy, so their spaces must be equal. Row g · K + k is agent k of
game g, in the order of `possible_agents`. A row is not `valid` in a step if its agent is not alive,
or appears in this step: then it has a first observation, but no transition. A game whose agents
have all ended is reset at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.attributes import call_each, set_each
from hotloop.envs.checks import (
    FLOAT32_MAX,
    as_flag,
    as_reward,
    check_call,
    describe_bad_info,
    describe_non_finite,
    has_finite_square,
    warn_of_coarse_numbers,
)
from hotloop.envs.encoding import ObsEncoder
from hotloop.envs.episode_metrics import MAX_METRICS, EpisodeMetrics, is_metric_name
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.games import Games, GameStep, Others
from hotloop.envs.gymnasium_envs import GymnasiumEnvs
from hotloop.envs.protocol import obs_hash
from hotloop.envs.spec import EnvSpec
from hotloop.errors import EnvironmentFailure, HotloopError, SpaceError
from hotloop.types import Array, RunningEpisode, StepArrays

TEAM_RETURN = "team_return"
"""Metric of each agent's episode: the sum of the returns of all agents of its game."""
# Prefix of the metric that only the episodes of one agent have.
_AGENT_RETURN = "return_"


class PettingZooEnvs(GymnasiumEnvs):
    """G games of K agents each, as N = G · K rows.

    An agent's episode is its game: it begins and ends with the game, even if the agent dies early,
    comes back or appears later. Its metrics are `team_return`, and its own return under its name.

    Args:
        games: the games. Those of their agents that are rows here must have the same spaces.
        spec: the specification of `games`. Its `first_env` is the index of the first row.
        env_id: name of the games in messages.
        agents: the K agents that are rows, all by default. `others` must then choose for the rest.

    Attributes:
        games: the games.
        leads: whether `reset` resets the games. One of several views does.
        others: the policies of the other agents, None if there are none, or in the view that acts
            last.

    Raises:
        SpaceError: a space is not supported, or the spaces of agents differ.
    """

    can_replay = True

    def __init__(
        self, games: Games, spec: EnvSpec, *, env_id: str, agents: Sequence[Any] = ()
    ) -> None:
        self.games, self.leads = games, True
        self.others: Others | None = None
        self.agents = self._agents = tuple(agents) or games.agents
        num_envs = len(games.games) * len(self._agents)
        spaces = common_spaces(games.games[0], self._agents, spec, env_id)
        super().__init__(games.games[0], num_envs, spaces, spec, env_id)
        games.views.append(self)
        self._out = self._step_buffers
        self._index = {agent: k for k, agent in enumerate(self._agents)}
        # The team's return, and that of each agent if there is room for all of them.
        self._agent_metrics = [f"{_AGENT_RETURN}{agent}" for agent in self._agents]
        names = [TEAM_RETURN, *self._agent_metrics]
        is_possible = all(map(is_metric_name, names))
        if len(names) + len(spec.log_info) > MAX_METRICS or not is_possible:
            self._agent_metrics = []
        self._metrics = EpisodeMetrics((*spec.log_info, TEAM_RETURN, *self._agent_metrics), env_id)
        self._totals = [EpisodeTotals() for _ in range(num_envs)]
        # The policy's next inputs. Those of dead agents are outdated.
        self._staged = np.zeros_like(self._step_buffers.obs)
        self._staged_rows = list(self._staged)  # stored views take half the time of `staged[i]`
        # The dtype of the last raw observation, which may differ from the declared one.
        self._box_dtype = self._encoder.box_dtype
        self._staged_mask = np.ones_like(self._step_buffers.mask)
        self._is_alive = [False] * num_envs
        self._returns, self._lengths = [0.0] * num_envs, [0] * num_envs
        self._game_lengths = [0] * len(games.games)
        # Rows whose games restarted when `resume_views` resumed them, None before it.
        self._restarted: list[int] | None = None
        # Values from each agent's last step.
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._raws: list[Any] = [None] * num_envs

    @property
    def first_game(self) -> Any:
        """The first game, PettingZoo's."""
        return self.games.games[0]

    def players(self, policy: str) -> dict[str, str]:
        """Return the name of each agent's policy, by agent.

        Args:
            policy: name of the policy if there is one for all agents.
        """
        return {str(x): self.games.policies.get(x, policy) for x in self.games.agents}

    def film(self, on_change: Callable[[], None]) -> None:
        """Call a function after each change of the first game, until its episode ends."""
        self.games.on_change = on_change

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if self.leads:
            self.games.reset(first_episode)
        if self.others is not None:
            self.others.reset()
        obs = self._new_obs()
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._step_buffers
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        self._out = out
        self._choose(action)
        if self.others is None:
            self.games.step()
        else:
            self.others.act()
        self._num_steps += 1
        out.obs[...] = self._staged
        self.mask = out.mask
        if self._masks is not None:
            out.mask[...] = self._staged_mask
        return out

    def begin_game(
        self, game: int, episode: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> None:
        """See `GameView.begin_game`."""
        rows = self._rows(game)
        first = rows.start
        for i in rows:
            self._episode[i] = episode
            self._is_alive[i], self._returns[i], self._lengths[i] = False, 0.0, 0
            self._infos[i] = {}
        self._game_lengths[game] = 0
        self._staged[first : rows.stop] = 0
        self._staged_mask[first : rows.stop] = True
        for agent, observation in observations.items():
            if agent in self._index:
                self._begin_agent(
                    first + self._index[agent], observation, infos.get(agent, _NOTHING)
                )
        is_first = self._first_env + first == 0 and self._episode[0] == 0
        if is_first and self._spec.stream == "training":
            warn_of_coarse_numbers(self._env_id, self.obs_spec, self._staged[rows.start])

    def write_steps(self, steps: Sequence[GameStep]) -> None:
        """See `GameView.write_steps`."""
        out = self._out
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.valid.fill(True)
        for game, step in enumerate(steps):
            self._write_step(game, step, out)
        if not has_finite_square(self._staged):
            for i, raw in enumerate(self._raws):
                if self._is_alive[i] or out.valid[i]:
                    self._check(i, self._encoder.check_range, raw, self._staged[i])
        out.next_obs[...] = self._staged
        if self._masks is not None:
            out.next_mask[...] = self._staged_mask
        for game, step in enumerate(steps):
            if step.is_over:
                self._end_episodes(game)

    def next_inputs(self) -> tuple[Array, Array]:
        """Return copies of the next observations and masks of all rows.

        Those of dead agents are outdated.
        """
        return self._staged.copy(), self._staged_mask.copy()

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
        """See `VectorEnv.resume`. A game that can't be replayed restarts for all of its rows."""
        if self._restarted is None:
            resume_views([self], [episodes], on_step)
        assert self._restarted is not None
        restarted, self._restarted = self._restarted, None
        obs = self._new_obs()
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return obs, restarted

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`. Each game is called once, and its rows have the same result."""
        results = call_each(self.games.games, name, *args, **kwargs)
        return tuple(result for result in results for _ in self._agents)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`. A game gets the value of its first row."""
        set_each(self.games.games, name, values, self.num_envs)

    def close(self) -> None:
        """See `VectorEnv.close`."""
        self._episode = [-1] * self.num_envs
        self.games.close()

    def _rows(self, game: int) -> range:
        num_agents = len(self._agents)
        return range(game * num_agents, (game + 1) * num_agents)

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

    def _choose(self, action: Array) -> None:
        """Set the actions of all agents that are rows."""
        actions, num_agents = self._decoder.rows(action), len(self._agents)
        for game, chosen in enumerate(self.games.chosen):
            first = game * num_agents
            chosen.update(zip(self._agents, actions[first : first + num_agents], strict=True))

    def _write_step(self, game: int, step: GameStep, out: StepArrays) -> None:
        """Write the rows of a game except for observations."""
        agents, is_alive, rows = self._agents, self._is_alive, self._staged_rows
        returns, lengths, raws, last_infos = self._returns, self._lengths, self._raws, self._infos
        # Masks and encoded observations take the slow path, `_write`.
        box_shape = None if self._masks is not None else self._encoder.box_shape
        box_dtype, reward = self._box_dtype, out.reward
        first = game * len(agents)
        self._game_lengths[game] += 1
        observations, rewards, terminations, truncations, infos, remaining, leaving, _ = step
        was_alive = is_alive[first : first + len(agents)]
        # Write the transitions of the agents that were alive.
        for i, agent in enumerate(agents, first):
            if not is_alive[i]:
                out.valid[i] = False
                continue
            try:
                observation, value = observations[agent], rewards[agent]
                is_terminated, is_truncated = terminations[agent], truncations[agent]
            except KeyError:
                raise self._failure(i, _UNFLAGGED.format(agent)) from None
            if type(value) is not float:
                is_double = type(value) is np.float64
                value = float(value) if is_double else self._check(i, as_reward, value)
            if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
                self._check_reward(i, value)
            reward[i] = value
            returns[i] += value
            lengths[i] += 1
            # Flags are rarely set, and identity is the fastest test.
            is_last = False
            if is_terminated is not False or is_truncated is not False:
                is_last = self._check(i, as_flag, is_terminated, "the termination")
                is_cut = self._check(i, as_flag, is_truncated, "the truncation")
                out.terminated[i], out.truncated[i] = is_last, is_cut
                is_alive[i] = not (is_last or is_cut)
            info = infos.get(agent, _NOTHING)
            if (
                type(observation) is np.ndarray
                and observation.shape == box_shape
                and observation.dtype is box_dtype
                and type(info) is dict
            ):
                rows[i][...] = observation
                raws[i], last_infos[i] = observation, info
            else:
                self._write(i, observation, info, is_last=is_last)
                box_dtype = self._box_dtype
            if agent not in remaining and is_alive[i]:
                raise self._failure(i, _UNFLAGGED.format(agent))
        if all(was_alive):
            return
        # Begin the agents that appeared.
        for agent, observation in observations.items():
            k = self._index.get(agent)
            if k is None or was_alive[k]:
                continue
            if agent in remaining and agent not in leaving:
                self._begin_agent(first + k, observation, infos.get(agent, _NOTHING))

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
        if isinstance(observation, np.ndarray):
            self._box_dtype = observation.dtype
        if self._masks is not None:
            values = None, observation, info, self._staged_mask[i], is_last
            self._check(i, self._masks.write_from, *values, at_reset=at_reset)

    def _failure(self, i: int | None, problem: str, **details: Any) -> EnvironmentFailure:
        if i is not None:
            problem = f"agent {self._agents[i % len(self._agents)]!r}: {problem}"
        return super()._failure(i, problem, **details)

    def _current_step(self, i: int) -> int:
        return self._game_lengths[i // len(self._agents)] - 1


def resume_views(
    views: Sequence[PettingZooEnvs],
    episodes: Sequence[Sequence[RunningEpisode]],
    on_step: Callable[[], None] = lambda: None,
) -> None:
    """Replay the running games of views that have all of their agents together.

    Each view's next `resume` returns the result.

    Args:
        views: the views.
        episodes: the running episodes of each view's rows.
        on_step: see `VectorEnv.resume`.

    Raises:
        EnvironmentFailure: a reset failed.
    """
    games = views[0].games
    for view in views:
        view._restarted = []
    for game in range(len(games.games)):
        rows = [
            (view, i, running[i])
            for view, running in zip(views, episodes, strict=True)
            for i in view._rows(game)
        ]
        last = max(running.episode for _, _, running in rows)
        games.skip_to(game, last)
        on_step()
        games.begin(game)
        if not _replay(games, game, rows, on_step):
            games.skip_to(game, last + 1)
            on_step()
            games.begin(game)
            for view, i, _ in rows:
                assert view._restarted is not None
                view._restarted.append(i)


def _replay(
    games: Games,
    game: int,
    rows: Sequence[tuple[PettingZooEnvs, int, RunningEpisode]],
    on_step: Callable[[], None],
) -> bool:
    """Repeat the actions of a game, and return whether they lead to the same observations."""
    if len({(running.episode, len(running.actions)) for _, _, running in rows}) > 1:
        return False
    views = list(dict.fromkeys(view for view, _, _ in rows))
    try:
        actions = {
            view.agents[i % len(view.agents)]: view._decoder.rows(running.actions)
            for view, i, running in rows
            if len(running.actions)
        }
        for t in range(len(rows[0][2].actions)):
            on_step()
            games.chosen[game].update({agent: values[t] for agent, values in actions.items()})
            step = games.step_one(game)
            for view in views:
                view._write_step(game, step, view._step_buffers)
            if step.is_over:
                return False
    except HotloopError:  # a game that is not deterministic may fail in any way
        return False
    return all(obs_hash(view._staged[i]) == running.obs_hash for view, i, running in rows)


_NOTHING: Mapping[str, Any] = {}
_UNFLAGGED = (
    "`step` must return an observation, a reward and two flags for agent {!r}, which was alive: "
    "return them, and set a flag when it leaves"
)


def common_spaces(game: Any, agents: Sequence[Any], spec: EnvSpec, env_id: str) -> tuple[Any, Any]:
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
