"""Statistics against SciPy, literals and known laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from hotloop.statistics import autocorrelation_time, kendall, student_t, theil_sen, thirds
from tests.profiler.sessions import correlated


@pytest.mark.parametrize("freedom", [1, 1.7, 2, 2.6, 4, 9, 30, 100, 1000])
@pytest.mark.parametrize("quantile", [0.6, 0.9, 0.95, 0.975, 0.995, 0.999])
def test_students_t_is_scipys(freedom, quantile):
    expected = scipy.stats.t.ppf(quantile, freedom)
    assert student_t(freedom, quantile) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # of any table
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
    # Of six pairs, five rise and one falls.
    assert kendall(np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(4 / 6)
    assert kendall(np.array([1.0])) == 0.0


def test_thirds_by_hand():
    assert thirds(np.array([1.0, 9.0, 2.0, 5.0, 5.0, 5.0, 7.0, 8.0, 0.0])) == (2.0, 7.0)
    assert thirds(np.array([3.0, 4.0])) == (3.0, 4.0)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_autocorrelation_time_of_a_known_process(phi):
    """It is (1 + φ) / (1 − φ)."""
    rng = np.random.default_rng(1)
    found = np.mean([autocorrelation_time(correlated(rng, 4000, phi)) for _ in range(10)])
    assert found == pytest.approx((1 + phi) / (1 - phi), rel=0.1)


def test_autocorrelation_time_where_nothing_varies():
    assert autocorrelation_time(np.ones(5)) == autocorrelation_time(np.empty(0)) == 1.0
    assert math.isfinite(autocorrelation_time(np.array([0.0, 1.0])))
