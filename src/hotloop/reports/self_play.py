"""The ratings and the win matrix of a run's self-play, as a section of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotloop.base import documents
from hotloop.base.html_page import escaped, table
from hotloop.runs.policies import SELF_PLAY_FILE

_MAX_COLUMNS = 12


def self_play_section(run: Path) -> str:
    """Return the tables as HTML, empty without readable results."""
    try:
        results = documents.read(run / SELF_PLAY_FILE)
        players, ratings = results["players"], results["ratings"]
        intervals, games, scores = results["intervals"], results["games"], results["scores"]
        rows = [
            [escaped(player), f"{ratings[i]:.0f} ± {intervals[i]:.0f}", f"{sum(games[i]):,}"]
            for i, player in enumerate(players)
        ]
        shown = _spread(len(players))
        matrix = [
            [escaped(players[i]), *(_score(scores[i][j], games[i][j]) for j in shown)]
            for i in shown
        ]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    return table(
        ["player", "Elo rating, 95 % interval", "games"],
        rows,
        "Ratings relative to the first player",
    ) + table(
        ["score of, against", *(players[j] for j in shown)],
        matrix,
        "Mean scores of the row's player against the column's: 1 for a win, ½ for a draw",
    )


def _spread(count: int) -> list[int]:
    """Return the indices of at most `_MAX_COLUMNS` players, evenly spread, with both ends."""
    if count <= _MAX_COLUMNS:
        return list(range(count))
    return [round(k * (count - 1) / (_MAX_COLUMNS - 1)) for k in range(_MAX_COLUMNS)]


def _score(score: Any, games: Any) -> str:
    return f"{score / games:.2f}" if games else "–"
