"""The pool of a run's opponents in self-play: frozen snapshots of its policy, and named players.

The pool keeps the latest snapshots, and older ones at growing distances. Games with random moves of
a snapshot do not count in scores and ratings, since they would make the snapshot look weaker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base import documents
from hotloop.base.streams import printable
from hotloop.envs import Spaces
from hotloop.envs.turns import Turn
from hotloop.errors import CheckpointError, shortened
from hotloop.policies import Network, PolicySnapshot
from hotloop.runs import Checkpoint
from hotloop.runs.checkpoints import Checkpoints
from hotloop.training.opponents import Player, PolicyPlayer, RandomPlayer, make_player
from hotloop.training.options import SelfPlayOptions
from hotloop.training.player_results import PlayerResults, StoredResults
from hotloop.types import Array

LEARNER = "learner"
"""Name of the policy since its last snapshot."""
_PREFIX = "step-"
_SNAPSHOT = re.compile(r"step-\d{12,}")
_DECAY = 0.99  # of older games in the score against an opponent, for each game against it
# Share of every opponent's probability that does not depend on its strength, so that none is
# forgotten.
_UNIFORM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class _StoredPool:
    """Schema of the state of self-play in a checkpoint, see `OpponentPool.state`."""

    snapshots: list[str]
    removed: dict[str, int]
    results: StoredResults
    recent: dict[str, tuple[float, float]]
    games: list[tuple[int, str, list[Any], bool]]
    num_calls: int
    metrics: dict[str, float] = field(default_factory=dict)


class OpponentPool:
    """The opponents of a run in self-play; see `Opponents`.

    Games of the policy between two snapshots count as games of the second one.

    Args:
        options: how opponents are drawn.
        seed: seed of the draws, and of the opponents' actions.
        path: directory of the snapshots.
        checkpoints: the checkpoints of the run, which may need snapshots.

    Attributes:
        network: the network of the policy and its snapshots, None before the run has made it.
    """

    def __init__(
        self, options: SelfPlayOptions, seed: int, path: Path, checkpoints: Checkpoints
    ) -> None:
        self._options, self._seed = options, seed
        self._files, self._checkpoints = Checkpoints(path), checkpoints
        self.network: Network | None = None
        self._players: dict[str, Player] = {}
        self._snapshots: list[str] = []
        self._removed: dict[str, int] = {}  # the step of its removal, until its file is deleted
        self._results = PlayerResults()
        self._recent: dict[str, list[float]] = {}  # games and score against each, decayed
        self._current: list[str] = []  # the opponent in each game
        self._has_random: list[bool] = []  # whether it has moved at random in the game
        # Running games to resume: episode, opponent, its moves, whether one was random.
        self._stored: dict[int, tuple[int, str, Sequence[Any], bool]] = {}
        self._num_calls = 0
        self._random: Player | None = None

    # --- opponents of the games -------------------------------------------------------------------

    def attach(self, spaces: Spaces) -> None:
        """See `Opponents.attach`."""
        self._random = RandomPlayer(spaces.action_spec)
        for name in self._options.opponents:
            self._players[name] = make_player(name, spaces)
        for game, (_, _, moves, _) in self._stored.items():
            if not all(_has_shape(move, spaces.action_spec.shape) for move in moves):
                raise _damaged(f"`games[{game}]` has moves of another game")

    def begin(self, game: int, episode: int) -> None:
        """See `Opponents.begin`."""
        while len(self._current) <= game:
            self._current.append("")
            self._has_random.append(False)
        stored = self._stored.get(game)
        if stored is not None and stored[0] == episode:
            _, self._current[game], _, self._has_random[game] = stored
            return
        self._has_random[game] = False
        names = self._candidates()
        rng = np.random.default_rng([self._seed, game, episode])
        self._current[game] = names[rng.choice(len(names), p=self._probabilities(names))]

    def act(self, turns: Sequence[Turn]) -> Sequence[Any]:
        """See `Opponents.act`. All turns of one opponent are one batch."""
        rng = np.random.default_rng([self._seed, self._num_calls])
        self._num_calls += 1
        groups: dict[str, list[int]] = {}
        for index, turn in enumerate(turns):
            groups.setdefault(self._current[turn.game], []).append(index)
        actions: list[Any] = [None] * len(turns)
        for name, indices in groups.items():
            chosen = self._player(name).act([turns[index] for index in indices], rng)
            for index, action in zip(indices, chosen, strict=True):
                actions[index] = action
        if self._options.self_play_epsilon:
            self._explore(turns, actions, rng)
        return actions

    def _explore(self, turns: Sequence[Turn], actions: list[Any], rng: np.random.Generator) -> None:
        """Replace some actions of snapshots by random ones."""
        assert self._random is not None
        explores = (rng.random(len(turns)) < self._options.self_play_epsilon).tolist()
        for index, turn in enumerate(turns):
            if explores[index] and self._current[turn.game] not in self._options.opponents:
                self._has_random[turn.game] = True
                actions[index] = self._random.act([turn], rng)[0]

    def end(self, game: int, score: float) -> None:
        """See `Opponents.end`."""
        if self._has_random[game]:
            return
        opponent = self._current[game]
        self._results.add(LEARNER, opponent, score)
        recent = self._recent.setdefault(opponent, [0.0, 0.0])
        recent[0], recent[1] = _DECAY * recent[0] + 1, _DECAY * recent[1] + score

    def recorded_moves(self, game: int) -> Sequence[Any]:
        """See `Opponents.recorded_moves`."""
        return self._stored[game][2] if game in self._stored else ()

    def name(self, game: int) -> str:
        """See `Opponents.name`."""
        return self._current[game]

    # --- snapshots --------------------------------------------------------------------------------

    def add(self, snapshot: PolicySnapshot, timesteps: int) -> None:
        """Add a snapshot of the policy as an opponent. Games since the last one count as its games.

        Raises:
            RunDirectoryError: the snapshot can't be written.
        """
        assert self.network is not None
        name = f"{_PREFIX}{timesteps:012}"
        self._files.save(
            Checkpoint(
                network=self.network.to_json(),
                snapshot=snapshot,
                arrays=dict,
                state={"timesteps": timesteps},
            ),
            names=(),  # a rewound run replaces later snapshots, which a link would protect
            keep=1_000_000,
        )
        self._snapshots.append(name)
        self._players[name] = PolicyPlayer(self.network, snapshot)
        self._results.rename(LEARNER, name)
        self._remove_old(timesteps)
        for old in self._snapshots[: -self._options.self_play_pool]:
            if old not in self._current:
                self._players.pop(old, None)

    def _remove_old(self, timesteps: int) -> None:
        """Remove old snapshots beyond the limit, and files that no checkpoint needs."""
        options = self._options
        while len(self._snapshots) > options.self_play_pool + options.self_play_keep:
            steps = [_steps_of(name) for name in self._snapshots]
            # Remove the one whose neighbors are closest, so that those left are evenly spread. The
            # first one stays, since it is the zero of the ratings.
            old = range(1, len(steps) - options.self_play_pool)
            free = [i for i in old if self._snapshots[i] not in self._current]
            if not free:
                break
            gaps = {i: steps[i + 1] - steps[i - 1] for i in free}
            if len(old) == 2 and 2 in gaps:
                # The later of two always has a close neighbor. It stays once the other one is
                # before the middle.
                gaps[2] = 2 * (steps[2] - steps[1])
            name = self._snapshots[min(gaps, key=gaps.__getitem__)]
            self._results.forget(name, self._rated_players())
            self._snapshots.remove(name)
            self._recent.pop(name, None)
            self._removed[name] = timesteps
        # Checkpoints from before the removal may have games against the snapshot.
        saved = [_steps_of(x) for x in self._checkpoints.names() if x.startswith(_PREFIX)]
        for name, step in list(self._removed.items()):
            if saved and step <= min(saved):
                self._files.remove(name)
                del self._removed[name]

    @property
    def num_snapshots(self) -> int:
        """Return the number of snapshots."""
        return len(self._snapshots)

    def is_due(self, timesteps: int) -> bool:
        """Return whether the next snapshot is due."""
        last = _steps_of(self._snapshots[-1])
        interval = self._options.self_play_interval
        return timesteps // interval > last // interval

    # --- results ----------------------------------------------------------------------------------

    def score(self) -> float | None:
        """Return the mean score since the last snapshot, None before the first game."""
        return self._results.mean_score(LEARNER)

    def table(self) -> dict[str, Any]:
        """Return the players, their ratings, and the games and scores of each pair, as JSON."""
        return self._results.table(self._rated_players())

    def _rated_players(self) -> list[str]:
        """Return the players with ratings."""
        learner = [LEARNER] if self._results.has(LEARNER) else []
        return list(dict.fromkeys([*self._snapshots, *self._options.opponents, *learner]))

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self, episodes: Sequence[int], moves: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Args:
            episodes: the running episode of each game.
            moves: the opponents' moves in it.
        """
        return {
            "snapshots": list(self._snapshots),
            "removed": dict(self._removed),
            "results": self._results.state(),
            "recent": {name: list(result) for name, result in self._recent.items()},
            "games": [
                list(values)
                for values in zip(episodes, self._current, moves, self._has_random, strict=False)
            ],
            "num_calls": self._num_calls,
        }

    def load(self, state: Any) -> dict[str, float]:
        """Continue from the state of a checkpoint, and return the metrics in it.

        Raises:
            CheckpointError: it has another format, or a snapshot is missing.
        """
        try:
            stored = documents.record(_StoredPool, state)
            for name in (*stored.snapshots, *stored.removed):  # they become paths
                if not _SNAPSHOT.fullmatch(name):
                    raise ValueError(f"there is no snapshot '{shortened(printable(name))}'")
            steps = [_steps_of(name) for name in stored.snapshots]
            if not steps or steps != sorted(set(steps)):
                raise ValueError("`snapshots` must be sorted, with one at least")
            for step in steps[-self._options.self_play_pool :]:
                if not self._files.has(step):
                    raise ValueError(f"the snapshot of step {step:,} is missing")
            opponents = {*stored.snapshots, *self._options.opponents}
            for name in sorted({*stored.recent, *(game[1] for game in stored.games)} - opponents):
                raise ValueError(f"there is no player '{shortened(printable(name))}'")
            if not all(0 <= score <= games < 2**53 for games, score in stored.recent.values()):
                raise ValueError("`recent` must be games and scores up to them")
            if stored.num_calls < 0:
                raise ValueError(f"`num_calls` must not be negative, got {stored.num_calls}")
            self._results.load(stored.results, opponents, LEARNER)
        except ValueError as error:
            raise _damaged(str(error)) from error
        self._snapshots, self._removed = stored.snapshots, stored.removed
        self._recent = {name: list(result) for name, result in stored.recent.items()}
        self._stored = dict(enumerate(stored.games))
        self._num_calls = stored.num_calls
        return stored.metrics

    def _candidates(self) -> list[str]:
        latest = 1 if self._options.self_play == "latest" else self._options.self_play_pool
        return [*self._snapshots[-latest:], *self._options.opponents]

    def _probabilities(self, names: Sequence[str]) -> Array:
        """Return the probability of each opponent.

        Prioritized fictitious self-play weights an opponent by (1 − p)², with the policy's score p
        against it (Vinyals et al. 2019, "hard").
        """
        uniform = np.full(len(names), 1 / len(names))
        if self._options.self_play != "prioritized":
            return uniform
        results = [self._recent.get(name, [0.0, 0.0]) for name in names]
        scores = np.array([(score + 0.5) / (count + 1) for count, score in results])
        weights = (1 - scores) ** 2
        return _UNIFORM_SHARE * uniform + (1 - _UNIFORM_SHARE) * weights / weights.sum()

    def _player(self, name: str) -> Player:
        if name not in self._players:  # the run was resumed
            assert self.network is not None
            snapshot = self._files.load(name).snapshot
            self._players[name] = PolicyPlayer(self.network, snapshot)
        return self._players[name]


def _has_shape(move: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a stored move is an action of this shape, of numbers."""
    try:
        row = np.asarray(move, np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return row.shape == shape and bool((abs(row) < 2**31).all())


def _damaged(problem: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint's state of self-play has another format ({problem}): choose another "
        "checkpoint, or start a new run"
    )


def _steps_of(name: str) -> int:
    """Return the transitions before a snapshot or checkpoint."""
    return int(name.removeprefix(_PREFIX))
