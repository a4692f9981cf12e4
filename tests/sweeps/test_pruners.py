"""Pruners: whom they stop, and Wilcoxon's test against SciPy's."""

import random

import pytest
from scipy.stats import wilcoxon

from hotloop.errors import ConfigError
from hotloop.sweeps import Run
from hotloop.sweeps.pruners import NUM_REPORTS, Pruner, signed_rank

STEPS = 1800


def run(trial, slope):
    curve = [(100 * k, slope * k) for k in range(1, NUM_REPORTS + 1)]
    return Run(trial, 1, STEPS, "tune", "done", curve[-1][1], "", 1.0, curve, "")


def test_signed_rank_is_scipys_exact_test():
    chance = random.Random(0)
    for n in range(1, 12):
        differences = [chance.gauss(-0.3, 1.0) for _ in range(n)]
        expected = wilcoxon(differences, alternative="less", method="exact").pvalue
        assert signed_rank(differences) == pytest.approx(expected)
    assert signed_rank([]) == signed_rank([0.0]) == 1.0
    assert signed_rank([-1, -1, -1, -1]) == pytest.approx(1 / 16)


def test_the_median_stops_who_is_below_it_but_not_at_the_start_nor_among_few():
    pruner, others = Pruner("median", STEPS), [run(k, slope=k) for k in range(1, 6)]
    assert "below the median of 5 runs" in pruner.why_stop([(600, 6.0)], others)
    assert "below the median" in pruner.why_stop([(1100, 9.0), (1300, 9.0)], others)  # past 2/3
    assert not pruner.why_stop([(600, 50.0)], others)
    assert not pruner.why_stop([(600, 9.0), (700, 0.0)], others)  # between 1/3 and 2/3
    assert not pruner.why_stop([(200, 0.0)], others)
    assert not pruner.why_stop([(600, 6.0)], others[:3])


def test_asha_lets_the_best_third_pass_a_rung():
    pruner, others = Pruner("asha", STEPS), [run(k, slope=k) for k in range(1, 6)]
    rung = STEPS // 3
    assert "5 of 5 runs were better" in pruner.why_stop([(rung, 0.0)], others)
    assert not pruner.why_stop([(rung, 25.0)], others)  # one is better
    assert not pruner.why_stop([(rung, 25.0), (rung + 300, 0.0)], others)  # past the last rung
    assert not pruner.why_stop([(rung, 0.0)], [])


def test_wilcoxon_gives_no_more_seeds_to_a_trial_that_is_worse_on_four():
    pruner = Pruner("wilcoxon", STEPS)
    best = {seed: 10.0 + seed for seed in range(1, 6)}
    worse = {seed: score - 1.0 for seed, score in best.items()}
    assert not pruner.why_no_more({1: 9.0, 2: 9.0, 3: 9.0}, best)
    assert "worse than the best trial on 4 seeds" in pruner.why_no_more(
        {seed: worse[seed] for seed in range(1, 5)}, best
    )
    assert not pruner.why_no_more(best, best)
    assert not Pruner("none", STEPS).why_no_more(worse, best)


def test_a_pruner_that_there_is_not():
    with pytest.raises(ConfigError, match="`--pruner` must be none, median, asha, wilcoxon"):
        Pruner("best", STEPS)
