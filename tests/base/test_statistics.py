"""Statistics against SciPy, literals and known laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from hotloop.base.statistics import (
    autocorrelation_time,
    bootstrap_interval,
    interquartile_mean,
    keeps_rising,
    kendall,
    probability_of_improvement,
    running_mean,
    stratified_interval,
    student_t,
    theil_sen,
    thirds,
)
from tests.profiler.sessions import correlated_noise
from tests.reference import comparison as slow


@pytest.mark.parametrize("freedom", [1, 1.7, 2, 2.6, 4, 9, 30, 100, 1000])
@pytest.mark.parametrize("quantile", [0.6, 0.9, 0.95, 0.975, 0.995, 0.999])
def test_students_t_is_scipys(freedom, quantile):
    expected = scipy.stats.t.ppf(quantile, freedom)
    assert student_t(freedom, quantile) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # from a printed table
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_students_t_by_hand(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, abs=1e-4)


@pytest.mark.parametrize("count", [2, 3, 10, 41])
def test_theil_sen_is_scipys(count):
    rng = np.random.default_rng(count)
    x, y = rng.normal(size=(2, count))
    expected = scipy.stats.theilslopes(y, x, method="joint")
    assert theil_sen(x, y) == pytest.approx((expected.slope, expected.intercept))


def test_theil_sen_ignores_outliers():
    x = np.arange(9.0)
    y = 2 * x + 1
    y[[2, 7]] = 100.0, -50.0
    assert theil_sen(x, y) == pytest.approx((2.0, 1.0))


def test_theil_sen_of_one_abscissa():
    assert theil_sen(np.ones(3), np.array([1.0, 2.0, 6.0])) == (0.0, 2.0)


@pytest.mark.parametrize("count", [2, 3, 10, 41])
def test_kendall_is_scipys(count):
    y = np.random.default_rng(count).normal(size=count)
    assert kendall(y) == pytest.approx(scipy.stats.kendalltau(np.arange(count), y).statistic)


def test_kendall_by_hand():
    # Five of six pairs rise and one falls.
    assert kendall(np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(4 / 6)
    assert kendall(np.array([1.0])) == 0.0


def test_thirds_by_hand():
    assert thirds(np.array([1.0, 9.0, 2.0, 5.0, 5.0, 5.0, 7.0, 8.0, 0.0])) == (2.0, 7.0)
    assert thirds(np.array([3.0, 4.0])) == (3.0, 4.0)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_autocorrelation_time_of_a_known_process(phi):
    """The expected time is (1 + φ) / (1 − φ)."""
    rng = np.random.default_rng(1)
    result = np.mean([autocorrelation_time(correlated_noise(rng, 4000, phi)) for _ in range(10)])
    assert result == pytest.approx((1 + phi) / (1 - phi), rel=0.1)


def test_autocorrelation_time_of_constant_values():
    assert autocorrelation_time(np.ones(5)) == autocorrelation_time(np.empty(0)) == 1.0
    assert math.isfinite(autocorrelation_time(np.array([0.0, 1.0])))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11, 100])
def test_the_interquartile_mean_is_scipys(count):
    values = np.random.default_rng(count).standard_cauchy((count, 6))
    expected = scipy.stats.trim_mean(values, 0.25, axis=0)
    np.testing.assert_allclose(interquartile_mean(values), expected)


def test_the_interquartile_mean_of_missing_values():
    values = np.array([[1.0, 1.0], [2.0, np.nan], [3.0, 3.0], [4.0, 4.0]])
    np.testing.assert_array_equal(interquartile_mean(values), [2.5, np.nan])


@pytest.mark.parametrize("count", [5, 10, 40])
def test_the_bootstrap_is_scipys(count):
    values = np.random.default_rng(count).normal(size=(count, 3))
    low, high = bootstrap_interval(values, resamples=20_000)
    for k in range(3):
        interval = scipy.stats.bootstrap(
            (values[:, k],),
            lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis),
            n_resamples=20_000,
            method="percentile",
            rng=np.random.default_rng(1),
        ).confidence_interval
        width = interval.high - interval.low
        assert low[k] == pytest.approx(interval.low, abs=0.04 * width)
        assert high[k] == pytest.approx(interval.high, abs=0.04 * width)


def test_the_bootstrap_has_the_stated_coverage():
    """About 95 % of the intervals of 200 samples of 20 contain the true value."""
    values = np.random.default_rng(0).normal(size=(20, 200))
    low, high = bootstrap_interval(values, resamples=500)
    assert 0.85 <= np.mean((low < 0.0) & (high > 0.0)) <= 1.0
    assert np.array_equal(low, bootstrap_interval(values, resamples=500)[0])


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (10, 7)])
def test_the_probability_of_improvement_is_scipys(sizes):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(6, size=size).astype(float) for size in sizes)  # some are equal
    expected = scipy.stats.mannwhitneyu(b, a).statistic / (len(a) * len(b))
    assert probability_of_improvement(a, b) == pytest.approx(expected)
    assert slow.probability_of_improvement(a, b) == pytest.approx(expected)


def test_the_probability_of_improvement_by_hand():
    # Three of six pairs are above and one is equal.
    result = probability_of_improvement(np.array([1.0, 3.0]), np.array([0.0, 3.0, 5.0]))
    assert result == pytest.approx(3.5 / 6)


def test_stratified_intervals_match_the_slow_implementation():
    rng = np.random.default_rng(3)
    # Two environments of very different scale have samples of A and B.
    strata = [rng.normal(mean, scale, 8) for mean, scale in [(0, 1), (1, 1), (0, 99), (50, 99)]]

    def mean(samples):
        pairs = zip(samples[::2], samples[1::2], strict=True)
        return np.mean([probability_of_improvement(a, b) for a, b in pairs], axis=0)

    expected = slow.stratified_interval(strata, slow.mean_improvement, resamples=2_000)
    assert stratified_interval(strata, mean) == pytest.approx(expected, abs=0.03)
    assert stratified_interval(strata, mean) == stratified_interval(strata, mean)


def test_the_interval_of_a_difference_is_scipys():
    a, b = np.random.default_rng(5).normal(size=(2, 12))
    interval = scipy.stats.bootstrap(
        (a, b),
        lambda a, b, axis: (
            scipy.stats.trim_mean(b, 0.25, axis=axis) - scipy.stats.trim_mean(a, 0.25, axis=axis)
        ),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    low, high = stratified_interval(
        (a, b), lambda x: interquartile_mean(x[1]) - interquartile_mean(x[0]), resamples=20_000
    )
    width = interval.high - interval.low
    assert low == pytest.approx(interval.low, abs=0.04 * width)
    assert high == pytest.approx(interval.high, abs=0.04 * width)


def _steady_noise(rng, length, phi, spread, warm_up):
    """Return a steady share, an AR(1) process around 1, that rises to it in a warm-up."""
    noise = rng.normal(size=length)
    for t in range(1, length):
        noise[t] = phi * noise[t - 1] + np.sqrt(1 - phi**2) * noise[t]
    series = np.exp(spread * noise)
    num_warm = round(warm_up * length)
    series[:num_warm] *= np.linspace(0.1, 1.0, num_warm)
    return series


def test_steady_noise_rarely_rises():
    """In less than 1 % of series, also with autocorrelation and a warm-up."""
    rng = np.random.default_rng(3)
    alarms = [
        keeps_rising(_steady_noise(rng, length, phi, spread, warm_up), 2.5)
        for length in (8, 12, 25, 60)
        for phi in (0.0, 0.5, 0.8)
        for spread in (0.1, 0.2, 0.5)
        for warm_up in (0.0, 0.2, 0.33)
        for _ in range(40)
    ]
    assert sum(alarms) < 0.01 * len(alarms)


@pytest.mark.parametrize(("length", "num_found"), [(8, 60), (12, 60), (30, 85)])
def test_growth_rises(length, num_found):
    rng, time = np.random.default_rng(3), np.arange(1, length + 1) / length
    noise = np.exp(0.05 * rng.normal(size=(100, length)))
    rising = [keeps_rising(time**2 * row, 2.5) for row in noise]
    assert sum(rising) >= num_found
    assert not any(keeps_rising(-np.sort(-row), 1.1) for row in noise)
    assert not keeps_rising(np.ones(length), 1.5)
    assert not keeps_rising(np.arange(7.0), 1.5)


def test_a_rise_that_ends_does_not_keep_rising():
    series = np.minimum(np.arange(40.0), 13.0) + np.random.default_rng(1).normal(size=40) * 0.1
    assert not keeps_rising(np.abs(series), 2.5)


def test_running_mean_literal():
    got = running_mean(np.array([1.0, 2.0, 6.0, 1.0]), window=2)
    np.testing.assert_allclose(got, [1.0, 1.5, 4.0, 3.5])


@pytest.mark.parametrize("window", [1, 2, 3, 7, 40, 100])
@pytest.mark.parametrize("count", [1, 6, 7, 40])
def test_running_mean_is_the_mean_of_each_window(window, count):
    values = np.random.default_rng(0).normal(size=count)
    expected = [values[max(0, end - window) : end].mean() for end in range(1, count + 1)]
    np.testing.assert_allclose(running_mean(values, window), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("extreme", [1e20, -np.inf, np.nan])
def test_an_extreme_value_stays_in_its_windows(extreme):
    means = running_mean(np.array([1.0, extreme, 2.0, 3.0, 4.0]), window=2)
    np.testing.assert_array_equal(means[[0, 3, 4]], [1.0, 2.5, 3.5])
    np.testing.assert_array_equal(means[1:3], [extreme / 2, extreme / 2])
    assert len(running_mean(np.empty(0), window=2)) == 0
