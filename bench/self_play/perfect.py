"""Perfect play in tic-tac-toe, and all games of a policy against it.

A position is a tuple of nine cells: 0 empty, 1 the first player, 2 the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Cells = tuple[int, ...]


def winner(cells: Cells) -> int:
    """Return the player with three in a row, 0 if there is none."""
    return next((cells[a] for a, b, c in LINES if cells[a] and cells[a] == cells[b] == cells[c]), 0)


def moves(cells: Cells) -> list[int]:
    """Return the empty cells."""
    return [i for i, cell in enumerate(cells) if not cell]


def place(cells: Cells, move: int, player: int) -> Cells:
    """Return the position after a move."""
    return (*cells[:move], player, *cells[move + 1 :])


@cache
def value(cells: Cells, player: int) -> int:
    """Return the result for the player to move under perfect play: 1, 0 or −1."""
    if winner(cells):
        return -1
    if not moves(cells):
        return 0
    return max(-value(place(cells, move, player), 3 - player) for move in moves(cells))


@cache
def best_moves(cells: Cells, player: int) -> tuple[int, ...]:
    """Return all moves of perfect play."""
    results = {move: -value(place(cells, move, player), 3 - player) for move in moves(cells)}
    best = max(results.values())
    return tuple(move for move, result in results.items() if result == best)


def perfect_player(observation: Any, mask: Any, rng: np.random.Generator) -> int:
    """Return a random perfect move, as an opponent: `--opponent bench.self_play.perfect:…`."""
    own, other = (np.asarray(observation["observation"])[..., k].ravel() for k in (0, 1))
    is_second = own.sum() < other.sum()
    player = 2 if is_second else 1
    cells = tuple(int(player * a + (3 - player) * b) for a, b in zip(own, other, strict=True))
    return int(rng.choice(best_moves(cells, player)))


def observe(cells: Cells, player: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return PettingZoo's observation of a position for the player to move, and the mask."""
    board = np.array(cells).reshape(3, 3)
    planes = np.stack([board == player, board == 3 - player], axis=-1).astype(np.int8)
    return {"observation": planes}, np.array(cells) == 0


def count_games(
    choose: Callable[[dict[str, np.ndarray], np.ndarray], int], *, is_perfect: bool
) -> dict[str, int]:
    """Return the numbers of wins, draws and losses of a policy in all games, in both seats.

    Args:
        choose: the policy's move in a position, from `observe`.
        is_perfect: whether the opponent makes all perfect moves, else all moves.
    """
    counts = {"wins": 0, "draws": 0, "losses": 0}

    def play(cells: Cells, player: int, seat: int) -> None:
        if (won := winner(cells)) or not moves(cells):
            counts["draws" if not won else "wins" if won == seat else "losses"] += 1
        elif player == seat:
            play(place(cells, choose(*observe(cells, player)), player), 3 - player, seat)
        else:
            for move in best_moves(cells, player) if is_perfect else moves(cells):
                play(place(cells, move, player), 3 - player, seat)

    for seat in (1, 2):
        play((0,) * 9, 1, seat)
    return counts
