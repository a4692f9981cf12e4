"""The kernels' logarithms and exponentials compared with the C library's, and KL-UCB's index."""

import math

import numpy as np
import pytest

from hotloop.bandits.kernels.kl_ucb import solve_index
from hotloop.bandits.kernels.mathematics import exp_f32, exp_f64, log2_f32, log_f64
from hotloop.base.numba_tools import njit


@njit
def _all(which, values):
    results = np.empty(len(values))
    for i in range(len(values)):
        if which == 0:
            results[i] = log_f64(values[i])
        elif which == 1:
            results[i] = exp_f64(values[i])
        elif which == 2:
            results[i] = log2_f32(np.float32(values[i]))
        else:
            results[i] = exp_f32(np.float32(values[i]))
    return results


def positive(rng, size, exponents):
    return np.concatenate(
        [
            rng.uniform(0.5, 2.0, size),
            2.0 ** rng.uniform(-exponents, exponents, size),
            1.0 + rng.normal(size=size) * 1e-4,
            [1.0, 2.0, 0.5, math.sqrt(0.5), math.sqrt(2.0), 2.0**-exponents, 2.0**exponents],
        ]
    )


def test_logarithm_in_float64():
    values = positive(np.random.default_rng(0), 20_000, 1000)
    expected = np.log(values)
    assert np.abs(_all(0, values) - expected).max() < 2e-13  # relative to 700
    near = np.abs(expected) < 1
    np.testing.assert_allclose(_all(0, values)[near], expected[near], rtol=3e-14, atol=1e-18)


def test_exponential_in_float64():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.uniform(-699, 699, 20_000), rng.normal(size=20_000), [0.0]])
    np.testing.assert_allclose(_all(1, values), np.exp(values), rtol=1e-15)
    np.testing.assert_allclose(_all(1, np.array([-1e4, -math.inf])), math.exp(-700), rtol=1e-15)


def test_logarithm_in_float32():
    values = positive(np.random.default_rng(2), 20_000, 120).astype(np.float32)
    expected = np.log2(values.astype(np.float64))
    np.testing.assert_allclose(_all(2, values.astype(float)), expected, rtol=4e-7, atol=1e-9)


def test_exponential_in_float32():
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.uniform(-87, 87, 20_000), rng.normal(size=20_000), [0.0]])
    values = values.astype(np.float32).astype(np.float64)
    # The last bit of the argument changes the result by up to 87 · 6e-8.
    np.testing.assert_allclose(_all(3, values), np.exp(values), rtol=1e-5)
    near = np.abs(values) < 1
    np.testing.assert_allclose(_all(3, values)[near], np.exp(values[near]), rtol=3e-7)
    np.testing.assert_allclose(_all(3, np.array([-1e4, -3e38])), math.exp(-87), rtol=1e-5)


@njit
def _index(p, budget):
    return solve_index(p, budget)


def test_index_matches_bisection():
    for p in (0.0, 1e-6, 0.05, 0.5, 0.9, 1 - 1e-6):
        for budget in (1e-6, 1e-3, 0.1, 1.0, 5.0):
            low, high = p, 1.0
            for _ in range(100):
                middle = (low + high) / 2
                divergence = (1 - p) * math.log((1 - p) / (1 - middle)) if middle < 1 else math.inf
                divergence += p * math.log(p / middle) if p > 0 else 0.0
                low, high = (middle, high) if divergence <= budget else (low, middle)
            assert _index(p, budget) == pytest.approx(low, abs=1e-9), (p, budget)


def test_index_of_edge_cases():
    assert _index(1.0, 0.5) == 1.0
    assert _index(0.3, 0.0) == 0.3
