"""Pruners: which runs are stopped before their end, and which trials get no more seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hotloop.errors import ConfigError
from hotloop.sweeps.results import Run

PRUNERS = {
    "none": "all runs go to their end",
    "median": "a run that is below the median of others at 1/3 or 2/3 of its steps is stopped",
    "asha": "a run goes on past 1/9 and 1/3 of its steps if it is among the best third there",
    "wilcoxon": "a trial that is worse than the best one on the same seeds gets no more of them",
}
# Of a run's steps, reports are kept of so many.
NUM_REPORTS = 18
# At these of them runs are compared: at each one half of the runs, or two thirds, may be stopped.
_RUNGS = {
    "median": (NUM_REPORTS // 3, 2 * NUM_REPORTS // 3),
    "asha": (NUM_REPORTS // 9, NUM_REPORTS // 3),
}
_LEAST_OTHERS = 4
_ETA = 3
_LEVEL = 0.1


class Pruner:
    """Decides on runs as they go on, and on trials between their seeds.

    Args:
        name: of `PRUNERS`.
        steps: of a run.

    Raises:
        ConfigError: there is no such pruner.
    """

    def __init__(self, name: str, steps: int) -> None:
        if name not in PRUNERS:
            raise ConfigError(f"`--pruner` must be {', '.join(PRUNERS)}, got '{name}'")
        self.name, self._steps = name, steps

    def rung(self, timesteps: int) -> int:
        """Return how many of the kept reports a run is past."""
        return timesteps * NUM_REPORTS // self._steps

    def why_stop(self, curve: Sequence[tuple[int, float]], others: Sequence[Run]) -> str:
        """Return why a run is stopped after its last report; empty: it goes on.

        Args:
            curve: of the run.
            others: runs of other trials.
        """
        if self.name not in _RUNGS or not curve:
            return ""
        timesteps, score = curve[-1]
        rung, before = self.rung(timesteps), self.rung(curve[-2][0]) if len(curve) > 1 else 0
        passed = [one for one in _RUNGS[self.name] if before < one <= rung]
        if not passed:
            return ""
        rung = passed[-1]
        there = [one for one in (self._at(run.curve, rung) for run in others) if one is not None]
        if self.name == "median":
            if len(there) < _LEAST_OTHERS or score >= statistics.median(there):
                return ""
            return f"{score:.4g} after {timesteps:,} steps, below the median of {len(there)} runs"
        better = sum(one > score for one in there)
        if better < max(1, math.ceil((len(there) + 1) / _ETA)):
            return ""
        return f"{score:.4g} after {timesteps:,} steps: {better} of {len(there)} runs were better"

    def _at(self, curve: Sequence[tuple[int, float]], rung: int) -> float | None:
        """Return the first score of a curve from a rung on."""
        return next((score for steps, score in curve if self.rung(steps) >= rung), None)

    def why_no_more(self, scores: Mapping[int, float], best: Mapping[int, float]) -> str:
        """Return why a trial gets no more seeds; empty: it does.

        Args:
            scores: of the trial, by seed.
            best: of the best trial so far.
        """
        if self.name != "wilcoxon":
            return ""
        both = sorted(scores.keys() & best.keys())
        p = signed_rank([scores[seed] - best[seed] for seed in both])
        if p >= _LEVEL:
            return ""
        return f"worse than the best trial on {len(both)} seeds (Wilcoxon, p = {p:.2g})"


def signed_rank(differences: Sequence[float]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test that differences tend to be negative.

    One-sided and exact, over all signs. Zeros are left out, ties share their mean rank. Wilcoxon
    1945, doi:10.2307/3001968.
    """
    nonzero = [x for x in differences if x != 0]
    if not nonzero:
        return 1.0
    sizes = sorted(abs(x) for x in nonzero)
    # Twice the mean rank of equal sizes, so that it is whole.
    ranks = {
        x: 2 * sizes.index(x) + sizes.count(x) + 1  # 2 · (first + (count + 1) / 2)
        for x in sizes
    }
    positive = sum(ranks[abs(x)] for x in nonzero if x > 0)
    ways = {0: 1}  # sum of positive ranks → how many signs have it
    for x in nonzero:
        rank, more = ranks[abs(x)], dict(ways)
        for total, count in ways.items():
            more[total + rank] = more.get(total + rank, 0) + count
        ways = more
    as_low = sum(count for total, count in ways.items() if total <= positive)
    return as_low / 2 ** len(nonzero)
