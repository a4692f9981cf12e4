"""Games between the players of a run in self-play, and their ratings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.ops.ratings import Evidence, elo_ratings, forget_player
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class StoredResults:
    """Schema of `PlayerResults.state`."""

    pairs: list[tuple[str, str, float, float]]
    known: list[str]
    precision: list[list[float]]
    shift: list[float]


class PlayerResults:
    """The games and scores of each pair of players."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], list[float]] = {}  # games and summed score
        # Evidence from the games of forgotten players on the ratings of these other players.
        self._known: list[str] = []
        self._evidence = Evidence(np.zeros((0, 0)), np.zeros(0))

    def add(self, player: str, opponent: str, score: float) -> None:
        """Count a game."""
        result = self._pairs.setdefault((player, opponent), [0.0, 0.0])
        result[0] += 1
        result[1] += score

    def has(self, player: str) -> bool:
        """Return whether games of a player against others are counted."""
        return any(name == player for name, _ in self._pairs)

    def rename(self, player: str, name: str) -> None:
        """Count the games of a player against others as those of another player."""
        for pair, result in list(self._pairs.items()):
            if pair[0] == player:
                del self._pairs[pair]
                self._pairs[name, pair[1]] = result

    def forget(self, player: str, players: Sequence[str]) -> None:
        """Remove the games of a player. Their effect on the ratings of the others stays.

        Args:
            player: the player.
            players: all players, the player among them.
        """
        games, scores = self._matrices(players)
        index = list(players).index(player)
        self._evidence = forget_player(scores, games, index, self._evidence_on(players))
        self._known = [name for name in players if name != player]
        self._pairs = {pair: x for pair, x in self._pairs.items() if player not in pair}

    def mean_score(self, player: str) -> float | None:
        """Return a player's mean score against others, None without a game."""
        results = [result for (name, _), result in self._pairs.items() if name == player]
        num_games = sum(result[0] for result in results)
        return sum(result[1] for result in results) / num_games if num_games else None

    def table(self, players: Sequence[str]) -> dict[str, Any]:
        """Return the ratings, and the games and scores of each pair, as JSON."""
        games, scores = self._matrices(players)
        ratings, widths = elo_ratings(scores, games, self._evidence_on(players))
        return {
            "players": list(players),
            "ratings": [round(x, 1) for x in ratings.tolist()],
            "intervals": [round(x, 1) for x in widths.tolist()],
            "games": games.astype(int).tolist(),
            "scores": scores.tolist(),
        }

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {
            "pairs": [[*pair, *result] for pair, result in self._pairs.items()],
            "known": self._known,
            "precision": self._evidence.precision.tolist(),
            "shift": self._evidence.shift.tolist(),
        }

    def load(self, stored: StoredResults, opponents: Collection[str], learner: str) -> None:
        """Continue from the state of a checkpoint.

        Args:
            stored: the state.
            opponents: names of all opponents.
            learner: name of the learning policy, which has games as well.

        Raises:
            ValueError: it has other players, or impossible numbers.
        """
        players = {*opponents, learner}
        for player, opponent, games, score in stored.pairs:
            if not (player in players and opponent in opponents and 0 <= score <= games < 2**53):
                raise ValueError("`results.pairs` has other players, or impossible scores")
        count = len(stored.known)
        precision, shift = np.array(stored.precision, np.float64), np.array(stored.shift)
        is_known = players.issuperset(stored.known) and len(set(stored.known)) == count
        if not is_known or precision.size != count**2 or shift.shape != (count,):
            raise ValueError("`results.precision` and `shift` must have a row for each of `known`")
        if not (np.isfinite(precision).all() and np.isfinite(shift).all()):
            raise ValueError("`results.precision` and `shift` must be finite")
        self._pairs = {(a, b): [games, score] for a, b, games, score in stored.pairs}
        self._known = stored.known
        self._evidence = Evidence(precision.reshape(count, count), shift.astype(np.float64))

    def _matrices(self, players: Sequence[str]) -> tuple[Array, Array]:
        """Return the games and the scores of each pair, (K, K)."""
        index = {name: number for number, name in enumerate(players)}
        games, scores = np.zeros((2, len(players), len(players)))
        for (player, opponent), (count, score) in self._pairs.items():
            i, j = index[player], index[opponent]
            games[i, j] += count
            games[j, i] += count
            scores[i, j] += score
            scores[j, i] += count - score
        return games, scores

    def _evidence_on(self, players: Sequence[str]) -> Evidence:
        """Return the evidence with zeros for new players."""
        index = {name: number for number, name in enumerate(players)}
        rows = [index[name] for name in self._known]
        precision, shift = np.zeros((len(players), len(players))), np.zeros(len(players))
        precision[np.ix_(rows, rows)] = self._evidence.precision
        shift[rows] = self._evidence.shift
        return Evidence(precision, shift)
