"""The pool of a run's opponents in self-play: frozen snapshots of its policy, and named players."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.envs import Spaces
from hotloop.envs.turns import Turn
from hotloop.ops.ratings import elo_ratings
from hotloop.policies import Network, PolicySnapshot
from hotloop.runs import Checkpoint
from hotloop.runs.checkpoints import Checkpoints
from hotloop.training.opponents import Player, PolicyPlayer, make_player
from hotloop.training.options import SelfPlayOptions
from hotloop.types import Array

LEARNER = "learner"
"""Name of the policy since its last snapshot."""
_PREFIX = "step-"
_DECAY = 0.99  # of older games in the score against an opponent, for each game against it
# Share of every opponent's probability that does not depend on its strength, so that none is
# forgotten.
_UNIFORM_SHARE = 0.1


class OpponentPool:
    """The opponents of a run in self-play; see `Opponents`.

    The policy between two snapshots counts as the player that the second one is.

    Args:
        options: how opponents are drawn.
        seed: seed of the draws, and of the opponents' actions.
        path: directory of the snapshots.

    Attributes:
        network: the network of the policy and its snapshots, None before the run has made it.
    """

    def __init__(self, options: SelfPlayOptions, seed: int, path: Path) -> None:
        self._options, self._seed = options, seed
        self._checkpoints = Checkpoints(path)
        self.network: Network | None = None
        self._players: dict[str, Player] = {}
        self._snapshots: list[str] = []
        self._results: dict[tuple[str, str], list[float]] = {}  # games and summed score
        self._recent: dict[str, list[float]] = {}  # the same against each opponent, decayed
        self._current: list[str] = []  # the opponent in each game
        self._stored: dict[int, tuple[int, str, Sequence[Any]]] = {}  # running games to resume
        self._num_calls = 0
        self._find_moves: Callable[[], Sequence[Any]] = list
        self._spaces: Spaces | None = None

    # --- opponents of the games -------------------------------------------------------------------

    def attach(self, spaces: Spaces) -> None:
        """See `Opponents.attach`."""
        self._spaces = spaces
        for name in self._options.opponents:
            self._players[name] = make_player(name, spaces)

    def begin(self, game: int, episode: int) -> None:
        """See `Opponents.begin`."""
        while len(self._current) <= game:
            self._current.append("")
        stored = self._stored.get(game)
        if stored is not None and stored[0] == episode:
            self._current[game] = stored[1]
            return
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
        return actions

    def end(self, game: int, score: float) -> None:
        """See `Opponents.end`."""
        opponent = self._current[game]
        result = self._results.setdefault((LEARNER, opponent), [0.0, 0.0])
        result[0] += 1
        result[1] += score
        recent = self._recent.setdefault(opponent, [0.0, 0.0])
        recent[0], recent[1] = _DECAY * recent[0] + 1, _DECAY * recent[1] + score

    def recorded_moves(self, game: int) -> Sequence[Any]:
        """See `Opponents.recorded_moves`."""
        return self._stored[game][2] if game in self._stored else ()

    # --- snapshots --------------------------------------------------------------------------------

    def add(self, snapshot: PolicySnapshot, timesteps: int) -> None:
        """Freeze a policy as an opponent, and count the games since the last one as its own.

        Raises:
            RunDirectoryError: the snapshot can't be written.
        """
        assert self.network is not None
        name = f"{_PREFIX}{timesteps:012}"
        self._checkpoints.save(
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
        for (player, opponent), result in list(self._results.items()):
            if player == LEARNER:
                self._results[name, opponent] = result
                del self._results[player, opponent]
        for old in self._snapshots[: -self._options.self_play_pool]:
            if old not in self._current:
                self._players.pop(old, None)

    @property
    def num_snapshots(self) -> int:
        """Return the number of snapshots."""
        return len(self._snapshots)

    def is_due(self, timesteps: int) -> bool:
        """Return whether the next snapshot is due."""
        last = int(self._snapshots[-1].removeprefix(_PREFIX))
        interval = self._options.self_play_interval
        return timesteps // interval > last // interval

    # --- results ----------------------------------------------------------------------------------

    def score(self) -> float | None:
        """Return the mean score since the last snapshot, None before the first game."""
        results = [x for (player, _), x in self._results.items() if player == LEARNER]
        num_games = sum(result[0] for result in results)
        return sum(result[1] for result in results) / num_games if num_games else None

    def table(self) -> dict[str, Any]:
        """Return the players, their ratings, and the games and scores of each pair, as JSON."""
        names = list(dict.fromkeys([*self._snapshots, *self._options.opponents]))
        if any(player == LEARNER for player, _ in self._results):
            names.append(LEARNER)
        index = {name: number for number, name in enumerate(names)}
        games, scores = np.zeros((2, len(names), len(names)))
        for (player, opponent), (count, score) in self._results.items():
            i, j = index[player], index[opponent]
            games[i, j] += count
            games[j, i] += count
            scores[i, j] += score
            scores[j, i] += count - score
        ratings, widths = elo_ratings(scores, games)
        return {
            "players": names,
            "ratings": [round(x, 1) for x in ratings.tolist()],
            "intervals": [round(x, 1) for x in widths.tolist()],
            "games": games.astype(int).tolist(),
            "scores": scores.tolist(),
        }

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self, episodes: Sequence[int], moves: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Args:
            episodes: the running episode of each game.
            moves: the opponents' moves in it.
        """
        return {
            "snapshots": list(self._snapshots),
            "results": [[*names, *result] for names, result in self._results.items()],
            "recent": {name: list(result) for name, result in self._recent.items()},
            "games": [
                [episode, opponent, list(played)]
                for episode, opponent, played in zip(episodes, self._current, moves, strict=False)
            ],
            "num_calls": self._num_calls,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self._snapshots = list(state["snapshots"])
        self._results = {(a, b): [games, score] for a, b, games, score in state["results"]}
        self._recent = {name: list(result) for name, result in state["recent"].items()}
        self._stored = {game: tuple(values) for game, values in enumerate(state["games"])}
        self._num_calls = state["num_calls"]

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
            snapshot = self._checkpoints.load(name).snapshot
            self._players[name] = PolicyPlayer(self.network, snapshot)
        return self._players[name]
