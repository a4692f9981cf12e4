"""Opponents in games: random, scripted, and policies of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hotloop.base.importing import describe_exception, import_object
from hotloop.envs import ActionSpec, ObsSpec, Spaces
from hotloop.envs.turns import Turn
from hotloop.errors import CheckpointError, EnvironmentFailure, UntrustedError, shortened
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.policies.heads.gaussian import MOST_FAR
from hotloop.runs import RunDirectory
from hotloop.runs.hub import is_hub_address, local_run
from hotloop.types import Array

RANDOM = "random"


class Player(Protocol):
    """One opponent."""

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> Sequence[Any]:
        """Return an action for each turn, as a policy samples them."""
        ...


class RandomPlayer:
    """Draws from the allowed actions, or between the bounds, uniformly.

    In the place of an infinite bound is ±1, or a number that is 1 away from the other bound.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self._spec = spec

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> Sequence[Any]:
        """See `Player.act`."""
        return [self._draw(turn.mask, rng) for turn in turns]

    def _draw(self, mask: np.ndarray, rng: np.random.Generator) -> Any:
        spec = self._spec
        choices: list[float] = []
        start = 0
        for count in spec.num_choices:
            allowed = np.arange(count)
            if spec.is_masked:
                allowed = np.flatnonzero(mask[start : start + count])
            choices.append(int(allowed[rng.integers(len(allowed))]))
            start += count
        if spec.low:
            box = spec.factors[1] if spec.kind == "hybrid" else spec
            choices += rng.uniform(*_finite_bounds(box)).ravel().tolist()
        return np.array(choices, spec.dtype).reshape(spec.shape)


def _finite_bounds(spec: ActionSpec) -> tuple[Array, Array]:
    """Return the bounds of box actions, with finite numbers in the place of infinite ones."""
    low, high = spec.bounds
    has_low, has_high = (abs(bound) <= MOST_FAR for bound in (low, high))
    low = np.where(has_low, low, np.where(has_high, np.minimum(-1.0, high - 1.0), -1.0))
    return low, np.where(has_high, high, np.where(has_low, np.maximum(1.0, low + 1.0), 1.0))


class ScriptedPlayer:
    """Acts by a function of the observation, the mask and a random generator.

    Args:
        function: returns an action, discrete ones counted from 0.
        name: its name in messages.
        spec: the actions.
    """

    def __init__(self, function: Callable[..., Any], name: str, spec: ActionSpec) -> None:
        self._function, self._name, self._spec = function, name, spec

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> Sequence[Any]:
        """See `Player.act`."""
        actions: list[Any] = []
        every_action = np.ones(sum(self._spec.num_choices), np.bool_)
        for turn in turns:
            mask = turn.mask if self._spec.is_masked else every_action
            try:
                action = self._function(turn.observation, mask, rng)
                row = np.asarray(action, np.float64).reshape(self._spec.shape)
            except (Exception, SystemExit) as error:
                raise EnvironmentFailure(
                    f"the opponent {self._name} raised {describe_exception(error)} for agent "
                    f"{turn.agent!r}: return an action for its observation"
                ) from error
            if not self._is_allowed(row, mask):
                raise EnvironmentFailure(
                    f"the opponent {self._name} must return an allowed action, counted from 0, got "
                    f"{action!r} for agent {turn.agent!r}: choose one of the mask's ones"
                )
            actions.append(row.astype(self._spec.dtype))
        return actions

    def _is_allowed(self, row: np.ndarray, mask: np.ndarray) -> bool:
        """Return whether discrete actions are in their range and the mask, and others finite."""
        start = 0
        for count, value in zip(self._spec.num_choices, row.flat, strict=False):
            if not (0 <= value < count and value % 1 == 0 and mask[start + int(value)]):
                return False
            start += count
        return bool(np.isfinite(row).all())


class PolicyPlayer:
    """Samples the actions of a policy."""

    def __init__(self, network: Network, snapshot: PolicySnapshot) -> None:
        self._policy = ActingPolicy(network, snapshot)

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> Sequence[Any]:
        """See `Player.act`."""
        obs = np.stack([turn.obs for turn in turns])
        mask = np.stack([turn.mask for turn in turns])
        return list(self._policy.sample(obs, rng, None, mask))


def make_player(name: str, spaces: Spaces, *, is_trusted: bool | None = None) -> Player:
    """Return the opponent of a name: `random`, `module:function`, a run, or `hf://user/name`.

    Args:
        name: the name.
        spaces: the spaces of the game.
        is_trusted: whether to import code that an opponent's run names. None: never, in a training,
            which has no option for it.

    Raises:
        ConfigError, UnknownNameError: there is no such function or run.
        CheckpointError: the run's policy has other spaces, or hidden states.
        UntrustedError: the run names code, and it is neither signed nor trusted by the user.
    """
    if name == RANDOM:
        return RandomPlayer(spaces.action_spec)
    if ":" in name and not (is_hub_address(name) or Path(name).exists()):
        function = import_object(name, kind="opponent", example="my_players:careful")
        return ScriptedPlayer(function, name, spaces.action_spec)
    try:
        run = RunDirectory.open(local_run(name))
        network, snapshot, _ = run.load_policy(is_trusted=bool(is_trusted))
    except UntrustedError as error:
        if is_trusted is not None:
            raise
        finding, _, _ = str(error).rpartition(": ")  # the advice is an option of other commands
        raise UntrustedError(
            f"{finding}: a training imports no code of another run; if you trust its author, call "
            f"hotloop.load('{name}', trust=True) in a function of yours, and pass that "
            "`module:function` as the opponent"
        ) from error
    check_opponent(name, network, spaces)
    return PolicyPlayer(network, snapshot)


def check_opponent(name: str, network: Network, spaces: Spaces) -> None:
    """Raise CheckpointError if a policy can't be an opponent in games with these spaces."""
    for part in ("obs_spec", "action_spec"):
        expected: ObsSpec | ActionSpec = getattr(spaces, part)
        if getattr(network, part) != expected:
            kind = "observations" if part == "obs_spec" else "actions"
            place, value, other = _difference(expected, getattr(network, part))
            raise CheckpointError(
                f"the opponent {name} must have the {kind} of this game, whose {place} is "
                f"{shortened(repr(value))}, got {shortened(repr(other))}: choose a run on this "
                "game with the same `action_masks`"
            )
    if network.memory_size:
        raise CheckpointError(
            f"the opponent {name} must have no hidden states, but it has a recurrent network: "
            "choose another run"
        )


def _difference(expected: Any, actual: Any) -> tuple[str, Any, Any]:
    """Return the name of the first field in which two specs differ, and its two values."""
    names = [field.name for field in dataclasses.fields(expected) if field.compare]
    name = next(x for x in names if getattr(expected, x) != getattr(actual, x))
    value, other = getattr(expected, name), getattr(actual, name)
    if name not in ("layout", "parts"):
        return f"`{name}`", value, other
    if len(value) != len(other):
        return "number of parts", len(value), len(other)
    part, other_part = next(pair for pair in zip(value, other, strict=True) if pair[0] != pair[1])
    place, *values = _difference(part, other_part)
    return f"{place} of {part.name!r}", *values


class FixedOpponent:
    """One opponent in all games, for evaluations; see `Opponents`.

    Args:
        name: see `make_player`.
        seed: seed of its actions. Nothing else determines them, so that all evaluations and videos
            have the same games.
        is_trusted: see `make_player`.
    """

    def __init__(self, name: str, seed: int, *, is_trusted: bool | None = None) -> None:
        self._name, self._seed, self._is_trusted = name, seed, is_trusted
        self._player: Player | None = None
        self._rngs: dict[int, np.random.Generator] = {}

    def attach(self, spaces: Spaces) -> None:
        """See `Opponents.attach`."""
        self._player = make_player(self._name, spaces, is_trusted=self._is_trusted)

    def begin(self, game: int, episode: int) -> None:
        """See `Opponents.begin`."""
        self._rngs[game] = np.random.default_rng([self._seed, game, episode])

    def act(self, turns: Sequence[Turn]) -> Sequence[Any]:
        """See `Opponents.act`."""
        assert self._player is not None
        return [self._player.act([turn], self._rngs[turn.game])[0] for turn in turns]

    def end(self, game: int, score: float) -> None:
        """See `Opponents.end`."""

    def recorded_moves(self, game: int) -> Sequence[Any]:
        """See `Opponents.recorded_moves`."""
        return ()

    def name(self, game: int) -> str:
        """See `Opponents.name`."""
        return self._name
