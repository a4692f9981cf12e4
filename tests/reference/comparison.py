"""Comparisons of runs in the obvious way, one pair and one resample after another."""

from __future__ import annotations

import random


def probability_of_improvement(a, b):
    """Return the mean over all pairs of 1 if B's is larger, 1/2 if both are equal, else 0."""
    wins = 0.0
    for x in a:
        for y in b:
            wins += 1.0 if y > x else 0.5 if y == x else 0.0
    return wins / (len(a) * len(b))


def mean_improvement(strata):
    """Return the mean over environments. Each has a stratum of A's runs, then one of B's."""
    improvements = [
        probability_of_improvement(strata[k], strata[k + 1]) for k in range(0, len(strata), 2)
    ]
    return sum(improvements) / len(improvements)


def stratified_interval(strata, statistic, *, resamples):
    """Return the 2.5 % and 97.5 % quantiles of the statistic, resampled within strata."""
    draw = random.Random(1)
    statistics = sorted(
        statistic([[draw.choice(stratum) for _ in stratum] for stratum in strata])
        for _ in range(resamples)
    )
    return statistics[round(0.025 * resamples)], statistics[round(0.975 * resamples)]
