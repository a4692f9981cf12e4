"""Exact best play of tic-tac-toe against an opponent that sometimes moves at random."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.self_play.perfect import Cells, count_games, moves, place, winner


class BestAnswers:
    """The best moves against a player that has learned the same, with some random moves.

    Args:
        epsilon: probability that a move of the opponent is random.
    """

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self.values = cache(self._values)

    def _values(self, cells: Cells, player: int) -> dict[int, float]:
        """Return the expected result of each move for the player to move."""
        return {move: self._after(place(cells, move, player), player) for move in moves(cells)}

    def _after(self, cells: Cells, player: int) -> float:
        """Return the expected result after a player's move."""
        if winner(cells):
            return 1.0
        if not moves(cells):
            return 0.0
        other = 3 - player
        expected = self.values(cells, other)
        best = max(expected.values())
        results = {move: self._at_turn(place(cells, move, other), player) for move in expected}
        likely = [results[move] for move, value in expected.items() if value > best - 1e-9]
        random = self._epsilon * sum(results.values()) / len(results)
        return random + (1 - self._epsilon) * sum(likely) / len(likely)

    def _at_turn(self, cells: Cells, player: int) -> float:
        """Return the expected result for a player after the other's move."""
        if winner(cells):
            return -1.0
        return max(self.values(cells, player).values(), default=0.0)

    def choose(self, observation: Any, mask: Any) -> int:
        """Return the best move in a position of `observe`."""
        own, other = (observation["observation"][..., k].ravel() for k in (0, 1))
        player = 2 if own.sum() < other.sum() else 1
        cells = tuple(int(player * a + (3 - player) * b) for a, b in zip(own, other, strict=True))
        values = self.values(cells, player)
        return max(values, key=lambda move: values[move])


def count_lost_games(epsilon: float) -> int:
    """Return the number of games that the best answers lose to perfect moves, in both seats."""
    return count_games(BestAnswers(epsilon).choose, is_perfect=True)["losses"]
