"""The ratings and the win matrix of a run's self-play, as a section of its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotloop.base import documents
from hotloop.base.html_page import escaped, table
from hotloop.runs.policies import SELF_PLAY_FILE

_MAX_COLUMNS = 12


@dataclass(frozen=True, kw_only=True)
class _Results:
    """Schema of `self_play.json`, see `OpponentPool.table`."""

    players: list[str]
    ratings: list[float]
    intervals: list[float]
    games: list[list[int]]
    scores: list[list[float]]


def self_play_section(run: Path) -> str:
    """Return the tables as HTML, empty without readable results."""
    try:
        results = documents.record(_Results, documents.read(run / SELF_PLAY_FILE))
    except (OSError, ValueError):
        return ""
    players, games, scores = results.players, results.games, results.scores
    sizes = {len(x) for x in (players, results.ratings, results.intervals, games, scores)}
    if {len(row) for row in (*games, *scores)} != sizes:
        return ""
    ratings = zip(players, results.ratings, results.intervals, games, strict=True)
    rows = [
        [escaped(player), f"{rating:.0f} ± {interval:.0f}", f"{sum(row):,}"]
        for player, rating, interval, row in ratings
    ]
    shown = _spread(len(players))
    matrix = [
        [escaped(players[i]), *(_score(scores[i][j], games[i][j]) for j in shown)] for i in shown
    ]
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


def _score(score: float, games: int) -> str:
    return f"{score / games:.2f}" if games else "–"
