"""A scripted player of connect four that looks one move ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS, COLUMNS = 6, 7


def one_ply(observation: Any, mask: Any, rng: np.random.Generator) -> int:
    """Return a move that wins, or else one that stops the other from winning, or a random one.

    As an opponent: `--opponent bench.self_play.one_ply:one_ply`.
    """
    board = np.asarray(observation["observation"], bool)
    allowed = np.flatnonzero(mask)
    for player in (0, 1):  # itself, and the other
        winning = [x for x in allowed if _wins(board, int(x), player)]
        if winning:
            return int(rng.choice(winning))
    return int(rng.choice(allowed))


def _wins(board: np.ndarray, column: int, player: int) -> bool:
    """Return whether a chip in a column makes four in a row."""
    row = int(np.flatnonzero(~board[:, column].any(axis=-1)).max())  # row 0 is the top
    own = board[..., player]
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        count = 1
        for sign in (1, -1):
            y, x = row + sign * down, column + sign * right
            while 0 <= y < ROWS and 0 <= x < COLUMNS and own[y, x]:
                count, y, x = count + 1, y + sign * down, x + sign * right
        if count >= 4:
            return True
    return False
