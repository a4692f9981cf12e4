"""Comparisons of runs written the obvious way, one pair and one resample after another."""

from __future__ import annotations

import random


def probability_of_improvement(a, b):
    """Mean over all pairs of 1 where B's is above, 1/2 where it is equal."""
    wins = 0.0
    for x in a:
        for y in b:
            wins += 1.0 if y > x else 0.5 if y == x else 0.0
    return wins / (len(a) * len(b))


def mean_improvement(strata):
    """Over environments, of which each has A's runs, then B's."""
    found = [probability_of_improvement(strata[k], strata[k + 1]) for k in range(0, len(strata), 2)]
    return sum(found) / len(found)


def stratified_interval(strata, statistic, *, resamples):
    """2.5 % and 97.5 % of the statistic, each group of runs redrawn by itself."""
    draw = random.Random(1)
    found = sorted(
        statistic([[draw.choice(one) for _ in one] for one in strata]) for _ in range(resamples)
    )
    return found[round(0.025 * resamples)], found[round(0.975 * resamples)]
