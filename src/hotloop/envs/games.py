"""Games of several agents, stepped once for all views of their agents."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from hotloop.base.importing import describe_exception
from hotloop.envs.checks import check_reset, describe_bad_step, describe_value
from hotloop.envs.closing import close_all
from hotloop.envs.environment_memory import MemoryCheck
from hotloop.envs.spec import EnvSpec
from hotloop.errors import ConfigError, EnvironmentFailure, UnknownNameError
from hotloop.timing import span


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
            "turns (its metadata has no `is_parallelizable`): train it by `self_play` "
            "(`--self-play uniform`), or choose an environment with a `parallel_env`"
        )
    return aec_to_parallel(env)


class Others(Protocol):
    """The policies of a game's other agents, which a view lets act within each of its steps."""

    def reset(self) -> None:
        """Begin the other agents' episodes."""
        ...

    def act(self) -> None:
        """Choose the other agents' actions, and step the games."""
        ...


class GameStep(NamedTuple):
    """The result of a step of one game: PettingZoo's five dictionaries by agent.

    Attributes:
        remaining: the agents that are left.
        leaving: those of `remaining` whose flags end their part.
        is_over: whether no agent is left, so that the game was reset.
    """

    observations: Mapping[Any, Any]
    rewards: Mapping[Any, Any]
    terminations: Mapping[Any, Any]
    truncations: Mapping[Any, Any]
    infos: Mapping[Any, Any]
    remaining: set[Any]
    leaving: set[Any]
    is_over: bool


class GameView(Protocol):
    """Agents of games, whose rows receive the games' results."""

    def begin_game(
        self, game: int, episode: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> None:
        """Begin the agents that are in a game from its start."""
        ...

    def write_steps(self, steps: Sequence[GameStep]) -> None:
        """Write the transitions of a step of all games, and end the episodes of those over."""
        ...


class Games:
    """G games with PettingZoo's parallel interface and the same agents.

    Args:
        games: the games.
        spec: the specification of `games`. Its `first_env` is the index of the first row.
        env_id: name of the games in messages.

    Attributes:
        agents: all agents, in the order of `possible_agents`.
        chosen: the next action of each agent, for each game.
        views: the views that receive the results. Together they have all agents.
        policies: the policy of each agent, empty if there is one for all.
        on_change: called after `reset` and each step, before games that are over are reset, to
            record a film.
    """

    def __init__(self, games: Sequence[Any], spec: EnvSpec, *, env_id: str) -> None:
        self.games = list(games)
        self.agents: tuple[Any, ...] = tuple(games[0].possible_agents)
        self.chosen: list[dict[Any, Any]] = [dict.fromkeys(self.agents) for _ in games]
        self.views: list[GameView] = []
        self.policies: dict[Any, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._agent_set, self._agent_list = set(self.agents), list(self.agents)
        self._spec, self._env_id = spec, env_id
        self._episode, self._lengths = [-1] * len(games), [0] * len(games)

    def reset(self, first_episode: int | None = None) -> None:
        """Begin an episode of each game, the next one by default."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * len(self.games)
        for game in range(len(self.games)):
            self.begin(game)
        self.on_change()

    def step(self) -> None:
        """Step all games with the chosen actions, and reset those that are over."""
        steps = [self.step_one(game) for game in range(len(self.games))]
        for view in self.views:  # before any reset, which may overwrite the observations
            view.write_steps(steps)
        self.on_change()
        for game, step in enumerate(steps):
            if step.is_over:
                with span("env_reset"):
                    self.begin(game)

    def skip_to(self, game: int, episode: int) -> None:
        """Let the next reset of a game begin this episode."""
        self._episode[game] = episode - 1

    def close(self) -> None:
        """Close the games. Further calls do nothing."""
        games, self.games = self.games, []
        close_all(games)

    def begin(self, game: int) -> None:
        """Begin the next episode of a game, in all views."""
        self._episode[game] += 1
        self._lengths[game] = 0
        seed = self._spec.episode_seed(game * len(self.agents), self._episode[game])
        try:
            result = self.games[game].reset(seed=seed)
        except (Exception, SystemExit) as error:
            problem = f"`reset` raised {describe_exception(error)}"
            raise self._failure(game, problem, at_reset=True) from error
        try:
            observations, infos = check_reset(result)
        except ValueError as error:
            kind = getattr(error, "failure_class", EnvironmentFailure)
            raise self._failure(game, str(error), at_reset=True, kind=kind) from None
        self._check_dict(game, observations, "observations", at_reset=True)
        self._check_agents(game, observations, at_reset=True)
        if not observations:
            problem = (
                "`reset` must return the observation of at least one agent, got none: begin each "
                "game with agents"
            )
            raise self._failure(game, problem, at_reset=True)
        for view in self.views:
            view.begin_game(game, self._episode[game], observations, infos)

    def step_one(self, game: int) -> GameStep:
        """Step a game with the chosen actions."""
        env, chosen = self.games[game], self.chosen[game]
        self._lengths[game] += 1
        if env.agents == self._agent_list:
            actions = chosen.copy()
        else:
            self._check_agents(game, env.agents)
            actions = {agent: chosen[agent] for agent in env.agents}
        try:
            result = env.step(actions)
        except (Exception, SystemExit) as error:
            problem = f"`step` raised {describe_exception(error)}"
            raise self._failure(game, problem) from error
        try:
            observations, rewards, terminations, truncations, infos = results = tuple(result)
        except (TypeError, ValueError):
            raise self._failure(game, describe_bad_step(result)) from None
        if list(map(type, results)) != _DICTS:
            for name, values in zip(_RESULTS, results, strict=True):
                self._check_dict(game, values, name)
        self._check_agents(game, observations)
        remaining = self._agent_set if env.agents == self._agent_list else set(env.agents)
        leaving: set[Any] = set()
        if _has_flags(terminations) or _has_flags(truncations):
            leaving = {
                agent
                for agent in remaining
                if _is_true(terminations.get(agent)) or _is_true(truncations.get(agent))
            }
        is_over = len(leaving) == len(remaining)
        return GameStep(
            observations, rewards, terminations, truncations, infos, remaining, leaving, is_over
        )

    def _check_agents(self, game: int, agents: Any, *, at_reset: bool = False) -> None:
        if self._agent_set.issuperset(agents):
            return
        for agent in agents:
            if agent not in self._agent_set:
                problem = (
                    f"agents must be among `possible_agents`, {list(self.agents)}, got {agent!r}: "
                    "name all agents there"
                )
                raise self._failure(game, problem, at_reset=at_reset)

    def _check_dict(self, game: int, values: Any, name: str, *, at_reset: bool = False) -> None:
        if not isinstance(values, Mapping):
            problem = (
                f"the {name} must be a dictionary with agents as keys, got "
                f"{describe_value(values)}: see PettingZoo's parallel interface"
            )
            raise self._failure(game, problem, at_reset=at_reset)

    def _failure(
        self,
        game: int,
        problem: str,
        *,
        at_reset: bool = False,
        kind: type[EnvironmentFailure] = EnvironmentFailure,
    ) -> EnvironmentFailure:
        place = "at its reset" if at_reset else f"step {self._lengths[game] - 1}"
        env = self._spec.first_env + game * len(self.agents)
        return kind(
            f"{self._env_id}, environment {env}, episode {self._episode[game]}, {place}: {problem}"
        )


_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")
_DICTS = [dict] * len(_RESULTS)


def _has_flags(flags: Mapping[Any, Any]) -> bool:
    """Return whether a flag is set, which is rare, or is an array."""
    try:
        return any(flags.values())
    except ValueError:
        return True


def _is_true(flag: Any) -> bool:
    try:
        return bool(flag)
    except ValueError:  # an array: the view of this agent raises an error about it
        return False


def make_games(
    first_game: Any,
    make_game: Callable[[], Any],
    spec: EnvSpec,
    num_envs: int | None,
    env_id: str,
) -> Games:
    """Return as many of PettingZoo's games as have `num_envs` agents, `first_game` among them."""
    games = [first_game]
    try:
        games = [as_parallel(first_game, env_id)]
        num_agents = len(getattr(games[0], "possible_agents", ()))
        if not num_agents:
            raise ConfigError(f"{env_id}: `possible_agents` must name all agents, got none")
        num_envs = num_envs or num_agents
        if num_envs % num_agents:
            less = num_envs // num_agents * num_agents
            options = " or ".join(str(x) for x in (less, less + num_agents) if x)
            raise ConfigError(
                f"{env_id}: each of its {num_agents} agents is one environment, so that `num_envs` "
                f"(of each worker) must be a multiple of {num_agents}, got {num_envs}: set it to "
                f"{options}"
            )
        memory = MemoryCheck(num_envs // num_agents)
        while len(games) * num_agents < num_envs:
            memory.check(len(games))
            games.append(as_parallel(make_game(), env_id))
        return Games(games, spec, env_id=env_id)
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the relevant one
            close_all(games)
        raise
