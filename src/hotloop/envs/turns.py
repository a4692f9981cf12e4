"""Games against opponents, with PettingZoo's agent-environment cycle: each game is a row.

In each game one agent is the learner's seat, which changes from game to game. A step of the row is
the learner's action and all moves of the others until the learner's next turn, so every row is a
transition. Agents that act at once take turns here too, without seeing each other's moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs.checks import as_flag, as_reward, check_call, has_finite_square
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.gymnasium_envs import GymnasiumEnvs
from hotloop.envs.pettingzoo_envs import common_spaces
from hotloop.envs.protocol import obs_hash
from hotloop.envs.spaces import Spaces
from hotloop.envs.spec import EnvSpec
from hotloop.errors import EnvironmentFailure, NonFiniteStep
from hotloop.timing import span
from hotloop.types import Array, RunningEpisode, StepArrays

SCORE, SEAT = "score", "seat"
"""Metrics of each episode: 1 for a win, ½ for a draw and 0 for a loss; the learner's seat."""
# Limits to the others' moves before a turn of the learner, and to games in a row without one.
_MAX_MOVES, _MAX_GAMES = 100_000, 100


class Turn(NamedTuple):
    """The turn of an opponent.

    Attributes:
        game: the game, 0 … N − 1.
        agent: the agent whose turn it is.
        observation: its observation as the game returns it.
        obs: the same as a row for a network, (*obs_shape).
        mask: the allowed actions, bool, (M,).
    """

    game: int
    agent: Any
    observation: Any
    obs: Array
    mask: Array


class TurnResult(NamedTuple):
    """The learner's reward since its last turn, and the flags of its new turn."""

    reward: float
    is_terminated: bool
    is_truncated: bool

    @property
    def is_end(self) -> bool:
        """Whether the learner's game has ended."""
        return self.is_terminated or self.is_truncated


class Opponents(Protocol):
    """The opponents of the learner in all games."""

    def attach(self, spaces: Spaces) -> None:
        """Receive the spaces of the agents, before any other call."""
        ...

    def begin(self, game: int, episode: int) -> None:
        """Choose the opponent of a new game."""
        ...

    def act(self, turns: Sequence[Turn]) -> Sequence[Any]:
        """Return the actions of these turns, each of a different game, as a policy samples them."""
        ...

    def end(self, game: int, score: float) -> None:
        """Receive the learner's score of a game: 1, ½ or 0."""
        ...

    def recorded_moves(self, game: int) -> Sequence[Any]:
        """Return the opponents' moves in a game that a resumed run was playing."""
        ...

    def name(self, game: int) -> str:
        """Return the name of the opponent in a running game."""
        ...


class TurnGames(GymnasiumEnvs):
    """N games against opponents.

    The learner's score of a game compares the sums of rewards: it wins if its own is larger than
    the best of the others. They are the sums when the learner leaves. If others play on, their
    later rewards do not count.

    Args:
        games: games with PettingZoo's interface `AECEnv` and agents with the same spaces.
        spec: the specification of `games`.
        opponents: the opponents.
        env_id: name of the games in messages.

    Raises:
        SpaceError: a space is not supported, or the spaces of agents differ.
    """

    can_replay = True

    def __init__(
        self, games: Sequence[Any], spec: EnvSpec, opponents: Opponents, *, env_id: str
    ) -> None:
        self._opponents = opponents
        self._agents = tuple(games[0].possible_agents)
        spaces = common_spaces(games[0], self._agents, spec, env_id)
        super().__init__(games[0], len(games), spaces, spec, env_id)
        self._envs = list(games)
        self._totals = [EpisodeTotals() for _ in games]
        self._staged = np.zeros_like(self._step_buffers.obs)
        self._staged_mask = np.ones_like(self._step_buffers.mask)
        self._lengths = [0] * len(games)
        self._rewards: list[dict[Any, float]] = [{} for _ in games]  # sums of each agent
        self._moves: list[list[Any]] = [[] for _ in games]  # of the opponents in running games
        self._scratch = np.zeros(self.obs_spec.shape, self.obs_spec.dtype)
        self._on_change: Callable[[], None] = lambda: None
        opponents.attach(self)

    @property
    def first_game(self) -> Any:
        """The first game, PettingZoo's."""
        return self._envs[0]

    def players(self, policy: str) -> dict[str, str]:
        """Return the name of each agent's player in the first game, by agent.

        Args:
            policy: name of the policy that learns.
        """
        seat, opponent = self.seat(0), self._opponents.name(0)
        return {str(agent): policy if agent == seat else opponent for agent in self._agents}

    def film(self, on_change: Callable[[], None]) -> None:
        """Call a function after each change of a single game, until its episode ends.

        It is called again after `pop_episodes`.
        """
        self._on_change = on_change

    def seat(self, game: int) -> Any:
        """Return the learner's agent in a running game."""
        number = self._first_env + game + self._episode[game]
        return self._agents[number % len(self._agents)]

    @property
    def moves(self) -> list[list[Any]]:
        """The opponents' moves in each running game, as lists, to replay it."""
        return [list(moves) for moves in self._moves]

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        self._begin_all(list(range(self.num_envs)))
        obs = self._new_obs()
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._step_buffers
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        out.valid.fill(True)
        # Act for the learner, and let the others move until its next turn.
        for game, chosen in enumerate(self._decoder.rows(action)):
            self._move(game, chosen)
            self._lengths[game] += 1
        results = self._play(list(range(self.num_envs)))
        for game, (reward, is_terminated, is_truncated) in enumerate(results):
            out.reward[game] = reward
            out.terminated[game], out.truncated[game] = is_terminated, is_truncated
        out.next_obs[...] = self._staged
        out.next_mask[...] = self._staged_mask
        # End finished games, and begin the next ones.
        ended = np.flatnonzero(out.terminated | out.truncated).tolist()
        for game in ended:
            self._end(game)
        if ended:
            with span("env_reset"):
                self._begin_all(ended)
        out.obs[...] = self._staged
        out.mask[...] = self._staged_mask
        self.mask = out.mask
        return out

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running_episodes`."""
        return list(zip(self._episode, self._lengths, strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`. The opponents have recorded their moves."""
        restarted_games: list[int] = []
        for game, episode in enumerate(episodes):
            self._episode[game] = episode.episode - 1
            on_step()
            self._begin(game)
            moves = list(self._opponents.recorded_moves(game))
            if not self._replay(game, episode, moves, on_step):
                restarted_games.append(game)
        self._begin_all(restarted_games)
        obs = self._new_obs()
        obs[...] = self._staged
        self.mask[...] = self._staged_mask
        return obs, restarted_games

    def _begin_all(self, games: list[int]) -> None:
        """Reset games, and let the others move until the learner's first turn."""
        for _ in range(_MAX_GAMES):
            for game in games:
                self._begin(game)
            results = self._play(games)
            # Skip a game that ended before the learner's first turn: it has no transition.
            games = [game for game, result in zip(games, results, strict=True) if result.is_end]
            if not games:
                return
        raise self._failure(
            games[0],
            f"the learner must have a turn, but {_MAX_GAMES} games in a row ended before it",
            at_reset=True,
        )

    def _begin(self, game: int) -> None:
        """Reset a game. `_play` then moves up to the learner's first turn."""
        self._episode[game] += 1
        self._lengths[game] = 0
        self._rewards[game] = dict.fromkeys(self._agents, 0.0)
        self._moves[game] = []
        self._opponents.begin(game, self._episode[game])
        seed = self._spec.episode_seed(game, self._episode[game])
        try:
            self._envs[game].reset(seed=seed)
        except (Exception, SystemExit) as error:
            problem = f"`reset` raised {describe_exception(error)}"
            raise self._failure(game, problem, at_reset=True) from error
        self._notify_film()

    def _play(self, games: list[int], replayed: list[Any] | None = None) -> list[TurnResult]:
        """Let the opponents move until it is the learner's turn in each game, or its end.

        Args:
            games: the games.
            replayed: moves to take in place of the opponents' own, for a single game.

        Returns:
            The result of each game.
        """
        results: dict[int, TurnResult] = {}
        waiting = games
        for _ in range(_MAX_MOVES):
            # Collect the opponents' turns in the games that wait for them.
            turns: list[Turn] = []
            for game in waiting:
                result = self._advance(game, turns)
                if result is not None:
                    results[game] = result
            if not turns:
                return [results[game] for game in games]
            # Take one move in each of these games.
            if replayed is None:
                actions = self._opponents.act(turns)
            elif replayed:
                actions = [np.asarray(replayed.pop(0), self.action_spec.dtype)]
            else:
                raise _ReplayEnded
            rows = np.stack([np.asarray(action) for action in actions])
            for turn, raw, chosen in zip(turns, rows, self._decoder.rows(rows), strict=True):
                self._moves[turn.game].append(raw.tolist())
                self._move(turn.game, chosen)
            waiting = [turn.game for turn in turns]
        raise self._failure(
            waiting[0],
            f"the learner's turn must come within {_MAX_MOVES:,} moves of the others, but it did "
            "not: end the game of an agent that never acts",
        )

    def _advance(self, game: int, turns: list[Turn]) -> TurnResult | None:
        """Return the learner's result if it is its turn, or else add an opponent's turn."""
        env, seat = self._envs[game], self.seat(game)
        while True:
            agent = env.agent_selection
            try:
                observation, reward, is_terminated, is_truncated, info = env.last()
            except (Exception, SystemExit) as error:
                raise self._failure(game, f"`last` raised {describe_exception(error)}") from error
            is_terminated = self._check(game, as_flag, is_terminated, "the termination")
            is_truncated = self._check(game, as_flag, is_truncated, "the truncation")
            is_over = is_terminated or is_truncated
            if agent == seat:
                value = self._check_reward(game, reward)
                row, mask = self._staged[game], self._staged_mask[game]
                self._write(game, observation, info, row, mask, is_last=is_terminated)
                return TurnResult(value, is_terminated, is_truncated)
            if not is_over:
                mask = np.ones(self.action_spec.mask_size, np.bool_)
                self._write(game, observation, info, self._scratch, mask)
                turns.append(Turn(game, agent, observation, self._scratch.copy(), mask))
                return None
            self._move(game, None)  # PettingZoo's way to remove an agent that has died
            if seat not in env.agents:
                raise self._failure(
                    game,
                    f"all agents must be in `agents` from the start of each game to their last "
                    f"turn, with a flag, but {seat!r} is missing: keep it in `agents`",
                )

    def _move(self, game: int, action: Any) -> None:
        env = self._envs[game]
        try:
            env.step(action)
        except (Exception, SystemExit) as error:
            raise self._failure(game, f"`step` raised {describe_exception(error)}") from error
        if action is not None:
            sums = self._rewards[game]
            for agent, reward in env.rewards.items():
                value = reward if type(reward) is float else self._check(game, as_reward, reward)
                if not math.isfinite(value):  # also of the others, for the score
                    problem = f"the reward of agent {agent!r} must be finite, got {value}"
                    raise self._failure(game, problem, kind=NonFiniteStep)
                sums[agent] = sums.get(agent, 0.0) + value
            self._notify_film()

    def _notify_film(self) -> None:
        if not self._finished:  # else the next game has begun
            self._on_change()

    def _write(
        self,
        game: int,
        observation: Any,
        info: Any,
        row: Array,
        mask: Array,
        *,
        is_last: bool = False,
    ) -> None:
        """Check and encode the learner's observation, and write its action mask."""
        self._check(game, self._encoder.write, observation, row)
        if not has_finite_square(row):
            self._check(game, self._encoder.check_range, observation, row)
        if self._masks is not None:
            info = info if isinstance(info, Mapping) else {}
            self._check(game, self._masks.write_from, None, observation, info, mask, is_last)
        elif self._may_warn:
            self._warn_unused_masks(None, observation, info)
            self._may_warn = False

    def _end(self, game: int) -> None:
        """Store a finished episode, and report its score to the opponents."""
        sums, seat = self._rewards[game], self.seat(game)
        others = max(value for agent, value in sums.items() if agent != seat)
        score = 0.5 + 0.5 * float(np.sign(sums[seat] - others))
        self._opponents.end(game, score)
        info = {"episode": {SCORE: score, SEAT: float(self._agents.index(seat))}}
        self._finished.append(self._ended_episode(game, info, sums[seat], self._lengths[game]))

    def _replay(
        self,
        game: int,
        episode: RunningEpisode,
        moves: list[Any],
        on_step: Callable[[], None],
    ) -> bool:
        """Repeat an episode's actions and moves, and return whether it is at the same point."""
        try:
            self._play([game], moves)
            for chosen in self._decoder.rows(episode.actions):
                on_step()
                self._move(game, chosen)
                self._lengths[game] += 1
                if self._play([game], moves)[0].is_end:
                    return False
        except (EnvironmentFailure, _ReplayEnded):
            return False
        return not moves and obs_hash(self._staged[game]) == episode.obs_hash

    def _current_step(self, i: int) -> int:
        return self._lengths[i]


class _ReplayEnded(Exception):
    """A replayed episode has no more of the opponents' moves."""
