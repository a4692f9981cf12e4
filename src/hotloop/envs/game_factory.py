"""Creation of PettingZoo's games for several policies, and for self-play."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.envs.checks import describe_value
from hotloop.envs.closing import close_all
from hotloop.envs.environment_memory import MemoryCheck
from hotloop.envs.factory import construct, resolve
from hotloop.envs.games import is_game, make_games
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.envs.spec import EnvSpec
from hotloop.envs.turns import Opponents, TurnGames
from hotloop.errors import ConfigError


def make_views(
    spec: EnvSpec,
    num_envs: int | None,
    assign: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]],
    *,
    leader: str = "",
) -> dict[str, PettingZooEnvs]:
    """Return views of the same games by name, each of which has some of the agents as rows.

    The first view leads: its `reset` resets the games. The caller sets `others` of each view.

    Args:
        spec: the environments, PettingZoo's.
        num_envs: the rows of all views, or of the leader if there is its name.
        assign: returns the agents of each view from all agents.
        leader: name of the first view, if it must be that of `num_envs`.

    Raises:
        ConfigError: the environment has one agent, or the agents act in turns.
        SpaceError: a space is not supported, or the spaces of a view's agents differ.
    """
    env_id, make_game, instance = _construct_game(spec)
    games: Any = instance
    try:
        agents = instance.possible_agents
        groups = assign(agents)
        if leader and num_envs is not None:
            num_envs = num_envs // len(groups[leader]) * len(agents)
        games = make_games(instance, make_game, spec, num_envs, env_id)
        games.policies = {agent: name for name, members in groups.items() for agent in members}
        first_game = spec.first_env // len(agents)
        views = {
            name: PettingZooEnvs(
                games,
                dataclasses.replace(spec, first_env=first_game * len(members)),
                env_id=env_id,
                agents=members,
            )
            for name, members in groups.items()
        }
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the relevant one
            games.close()
        raise
    for view in list(views.values())[1:]:
        view.leads = False
    return views


def assign_by_index(
    groups: Mapping[str, Sequence[int]],
) -> Callable[[Sequence[Any]], dict[str, list[Any]]]:
    """Return the argument `assign` of `make_views` for the indices of each view's agents."""
    return lambda agents: {name: [agents[k] for k in group] for name, group in groups.items()}


def make_turn_games(spec: EnvSpec, num_envs: int, opponents: Opponents) -> TurnGames:
    """Return N games of PettingZoo against opponents, in which agents act in turns.

    Raises:
        ConfigError: the environment has one agent.
        SpaceError: a space is not supported, or the spaces of agents differ.
    """
    env_id, make_game, instance = _construct_game(spec)
    from pettingzoo import AECEnv
    from pettingzoo.utils.conversions import parallel_to_aec

    games: list[Any] = []
    try:
        memory = MemoryCheck(num_envs)
        while len(games) < num_envs:
            memory.check(len(games))
            game = make_game() if games else instance
            games.append(game if isinstance(game, AECEnv) else parallel_to_aec(game))
        if len(games[0].possible_agents) < 2:
            raise ConfigError(
                f"{env_id}: self-play needs a game of at least two agents, got "
                f"{list(games[0].possible_agents)}: leave the option out"
            )
        return TurnGames(games, spec, opponents, env_id=env_id)
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the relevant one
            close_all(games or [instance])
        raise


def _construct_game(spec: EnvSpec) -> tuple[str, Callable[[], Any], Any]:
    """Return the name of a game of several agents, a function that makes one, and a first one."""
    env_id, factory = resolve(spec)
    make_game = functools.partial(construct, env_id, factory, spec.env_kwargs)
    instance = make_game()
    if is_game(instance):
        return env_id, make_game, instance
    instance.close()
    raise ConfigError(
        f"{env_id}: several policies and self-play need an environment of several agents, got "
        f"{describe_value(instance)}: choose one of PettingZoo"
    )
