"""Decisions of pruners, and Wilcoxon's test against SciPy's."""

import random

import pytest
from scipy.stats import wilcoxon

from hotloop.errors import ConfigError
from hotloop.experiments import Run
from hotloop.experiments.pruners import NUM_REPORTS, Pruner, signed_rank

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


def test_the_median_pruner_stops_runs_below_it_after_the_start():
    pruner, runs = Pruner("median", STEPS), [run(k, slope=k) for k in range(1, 6)]
    assert "below the median of 5 runs" in pruner.stop_reason([(600, 6.0)], runs)
    assert "below the median" in pruner.stop_reason([(1100, 9.0), (1300, 9.0)], runs)  # past 2/3
    assert not pruner.stop_reason([(600, 50.0)], runs)
    assert not pruner.stop_reason([(600, 9.0), (700, 0.0)], runs)  # between 1/3 and 2/3
    assert not pruner.stop_reason([(200, 0.0)], runs)
    assert not pruner.stop_reason([(600, 6.0)], runs[:3])


def test_asha_lets_the_best_third_pass_a_rung():
    pruner, runs = Pruner("asha", STEPS), [run(k, slope=k) for k in range(1, 6)]
    rung = STEPS // 3
    assert "5 of 5 runs were better" in pruner.stop_reason([(rung, 0.0)], runs)
    assert not pruner.stop_reason([(rung, 25.0)], runs)  # one run is better
    assert not pruner.stop_reason([(rung, 25.0), (rung + 300, 0.0)], runs)  # past the last rung
    assert not pruner.stop_reason([(rung, 0.0)], [])


def test_wilcoxon_stops_a_trial_that_is_worse_on_four_seeds():
    pruner = Pruner("wilcoxon", STEPS)
    best = {seed: 10.0 + seed for seed in range(1, 6)}
    worse = {seed: score - 1.0 for seed, score in best.items()}
    assert not pruner.reject_reason({1: 9.0, 2: 9.0, 3: 9.0}, best)
    assert "worse than the best trial on 4 seeds" in pruner.reject_reason(
        {seed: worse[seed] for seed in range(1, 5)}, best
    )
    assert not pruner.reject_reason(best, best)
    assert not Pruner("none", STEPS).reject_reason(worse, best)


def test_an_unknown_pruner_is_rejected():
    with pytest.raises(ConfigError, match="`--pruner` must be none, median, asha, wilcoxon"):
        Pruner("best", STEPS)
