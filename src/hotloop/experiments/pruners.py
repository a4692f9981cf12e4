"""Pruners, which stop bad runs early, and start no further seeds of bad trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hotloop.base.rounding import format_number
from hotloop.errors import ConfigError
from hotloop.experiments.results import Run

PRUNERS = {
    "none": "all runs train to the end",
    "median": "stop runs below the median of the other runs after 1/3 or 2/3 of the steps",
    "asha": "stop runs that are not in the best third after 1/9 or 1/3 of the steps",
    "wilcoxon": "start no more seeds of a trial that is worse than the best one on the same seeds",
}
# Number of reports that are stored per run, at equal distances.
NUM_REPORTS = 18
# Reports at which runs are compared. Each comparison can stop half of the runs, or two thirds.
_RUNGS = {
    "median": (NUM_REPORTS // 3, 2 * NUM_REPORTS // 3),
    "asha": (NUM_REPORTS // 9, NUM_REPORTS // 3),
}
_MIN_RUNS = 4
_ETA = 3
_SIGNIFICANCE_LEVEL = 0.1


class Pruner:
    """A pruner, which decides about runs after each report, and about trials between seeds.

    Args:
        name: a key of `PRUNERS`.
        steps: number of steps of a run.

    Raises:
        ConfigError: there is no such pruner.
    """

    def __init__(self, name: str, steps: int) -> None:
        if name not in PRUNERS:
            raise ConfigError(f"`--pruner` must be {', '.join(PRUNERS)}, got '{name}'")
        self.name, self._steps = name, steps

    def rung(self, timesteps: int) -> int:
        """Return the number of stored reports that a run has passed."""
        return timesteps * NUM_REPORTS // self._steps

    def stop_reason(self, curve: Sequence[tuple[int, float]], runs: Sequence[Run]) -> str:
        """Return why a run must stop after its last report, "" if it continues.

        Args:
            curve: (steps, score) of the run's reports.
            runs: runs of other trials.
        """
        if self.name not in _RUNGS or not curve:
            return ""
        timesteps, score = curve[-1]
        rung, last_rung = self.rung(timesteps), self.rung(curve[-2][0]) if len(curve) > 1 else 0
        passed_rungs = [x for x in _RUNGS[self.name] if last_rung < x <= rung]
        if not passed_rungs:
            return ""
        rung = passed_rungs[-1]
        scores = [x for x in (self._score_at(run.curve, rung) for run in runs) if x is not None]
        if self.name == "median":
            if len(scores) < _MIN_RUNS or score >= statistics.median(scores):
                return ""
            text = format_number(score, abs(score - statistics.median(scores)))
            return f"{text} after {timesteps:,} steps, below the median of {len(scores)} runs"
        better = sum(x > score for x in scores)
        if better < max(1, math.ceil((len(scores) + 1) / _ETA)):
            return ""
        text = format_number(score, max(scores) - score)
        return f"{text} after {timesteps:,} steps: {better} of {len(scores)} runs were better"

    def _score_at(self, curve: Sequence[tuple[int, float]], rung: int) -> float | None:
        """Return the first score of a curve at or after a rung, None if there is none."""
        return next((score for steps, score in curve if self.rung(steps) >= rung), None)

    def reject_reason(self, scores: Mapping[int, float], best: Mapping[int, float]) -> str:
        """Return why a trial gets no more seeds, "" if it does.

        Args:
            scores: seed → score of the trial.
            best: seed → score of the best trial so far.
        """
        if self.name != "wilcoxon":
            return ""
        seeds = sorted(scores.keys() & best.keys())
        p_value = signed_rank([scores[seed] - best[seed] for seed in seeds])
        if p_value >= _SIGNIFICANCE_LEVEL:
            return ""
        return f"worse than the best trial on {len(seeds)} seeds (Wilcoxon, p = {p_value:.2g})"


def signed_rank(differences: Sequence[float]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test that differences tend to be negative.

    The test is one-sided and exact, over all signs. Zeros are dropped, and ties share their mean
    rank. Wilcoxon 1945, doi:10.2307/3001968.
    """
    nonzero = [x for x in differences if x != 0]
    if not nonzero:
        return 1.0
    sizes = sorted(abs(x) for x in nonzero)
    # Twice the mean rank of equal sizes, which is an integer.
    ranks = {
        x: 2 * sizes.index(x) + sizes.count(x) + 1  # 2 · (first index + (count + 1) / 2)
        for x in sizes
    }
    positive = sum(ranks[abs(x)] for x in nonzero if x > 0)
    counts = {0: 1}  # sum of positive ranks → number of sign patterns
    for x in nonzero:
        rank, new_counts = ranks[abs(x)], dict(counts)
        for total, count in counts.items():
            new_counts[total + rank] = new_counts.get(total + rank, 0) + count
        counts = new_counts
    num_as_low = sum(count for total, count in counts.items() if total <= positive)
    return num_as_low / 2 ** len(nonzero)
