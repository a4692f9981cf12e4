"""Philox matches its published answers, and normals follow their law."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest

from hotloop.bandits import EpsilonGreedy, GaussianRewards, run
from hotloop.bandits.kernels.mathematics import exp_f32, log2_f32
from hotloop.bandits.kernels.randomness import normal_pair, philox, unit
from tests.bandits.laws import assert_law, critical
from tests.reference.bandits import normals
from tests.reference.philox import philox_4x32

u32 = np.uint32


@numba.njit
def all_words(counters, keys):
    words = np.empty((len(counters), 4), np.uint32)
    for row in range(len(counters)):
        c, k = counters[row], keys[row]
        a, b, c, d = philox(c[0], c[1], c[2], c[3], k[0], k[1])
        words[row, 0], words[row, 1], words[row, 2], words[row, 3] = a, b, c, d
    return words


@numba.njit
def all_pairs(words):
    pairs = np.empty((len(words), 2), np.float32)
    for row in range(len(words)):
        pairs[row, 0], pairs[row, 1] = normal_pair(words[row, 0], words[row, 1])
    return pairs


@numba.njit
def all_units(words):
    units = np.empty(len(words), np.float32)
    for row in range(len(words)):
        units[row] = unit(words[row])
    return units


# Random123's kat_vectors for philox4x32, 10 rounds.
ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), ANSWERS)
def test_known_answers(counter, key, answer):
    words = all_words(np.array([counter], u32), np.array([key], u32))
    assert tuple(int(word) for word in words[0]) == answer
    assert philox_4x32(counter, key) == answer


def test_words_match_the_reference():
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, (500, 4), dtype=u32)
    keys = rng.integers(0, 2**32, (500, 2), dtype=u32)
    for counter, key, words in zip(counters, keys, all_words(counters, keys), strict=True):
        expected = philox_4x32([int(word) for word in counter], [int(word) for word in key])
        assert tuple(int(word) for word in words) == expected


def many_words(num):
    counters = np.zeros((num, 4), u32)
    counters[:, 0] = np.arange(num)
    counters[:, 2] = 77
    return all_words(counters, np.full((num, 2), 5, u32))


@pytest.fixture(scope="module")
def pairs():
    """Return two million normals, in pairs."""
    return all_pairs(many_words(1_000_000)[:, :2]).astype(np.float64)


EDGES = [0, 1, 2, 3, 7, 8, 0x7FFFFFF8, 0x7FFFFFFF, 0x80000000, 0x80000006, 0xFFFFFFF9, 0xFFFFFFFF]


def test_normals_match_the_reference():
    edges = np.array([(a, b) for a in EDGES for b in EDGES], u32)
    words = np.concatenate([edges, many_words(20_000)[:, :2]])
    actual = all_pairs(words).astype(np.float64)
    assert np.isfinite(actual).all()
    expected = np.array([normals(int(a), int(b)) for a, b in words])
    # Near 1 a float32 u has 24 bits, so small radii are less accurate.
    radius = np.hypot(*expected.T)
    tolerance = 1e-6 + np.minimum(2e-7 / np.maximum(radius, 1e-9), 1e-3)
    assert (np.abs(actual - expected).max(axis=1) < tolerance).all()


def test_normals_have_their_moments(pairs):
    values = pairs.ravel()
    num = len(values)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        error = math.sqrt(variance / num)
        assert abs((values**power).mean() - moment) < 5 * error


def test_normals_follow_their_law(pairs):
    edges = np.linspace(-3.5, 3.5, 141)
    cdf = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in edges])
    law = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    for values in pairs.T:
        assert_law(np.bincount(np.digitize(values, edges), minlength=142), law)


def test_normals_of_a_pair_are_independent(pairs):
    """Sign, order and size of one are independent of the other's."""
    edges = np.array([-1.2, -0.6, -0.2, 0.0, 0.2, 0.6, 1.2])
    cells = np.digitize(pairs[:, 0], edges) * 8 + np.digitize(pairs[:, 1], edges)
    cdf = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in edges])
    law = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    assert_law(np.bincount(cells, minlength=64), np.outer(law, law).ravel())
    for power in (1, 2):
        correlation = np.corrcoef((pairs**power).T)[0, 1]
        assert abs(correlation) < 5 / math.sqrt(len(pairs))


def test_range_of_normals():
    """The smallest word has the largest radius, √(−2 ln 2⁻³²). The largest word has nearly none."""
    far = all_pairs(np.array([(0, 0), (0xFFFFFFFF, 0)], u32))
    assert np.abs(far[0]).max() == pytest.approx(math.sqrt(64 * math.log(2)), rel=1e-6)
    assert np.abs(far[1]).max() < 1e-3


def test_units_are_below_one():
    words = np.array([0, 255, 256, 0xFFFFFFFF], u32)
    np.testing.assert_array_equal(all_units(words), [0.0, 0.0, 2.0**-24, 1 - 2.0**-24])


def test_logarithm_and_exponential():
    @numba.njit
    def logarithms(values):
        return np.array([log2_f32(value) for value in values])

    @numba.njit
    def exponentials(values):
        return np.array([exp_f32(value) for value in values])

    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-80, 80, 100_000)).astype(np.float32)
    x = np.append(x, np.array([1, 2, 0.5, np.nextafter(1, 0), np.nextafter(1, 2)], np.float32))
    exact = np.log2(x.astype(np.float64))
    assert (np.abs(logarithms(x) - exact) <= 4e-7 * np.maximum(np.abs(exact), 0.5)).all()
    y = np.append(rng.uniform(-87, 87, 100_000), [0.0, 1.0, -1.0]).astype(np.float32)
    exact = np.exp(y.astype(np.float64))
    # The error of x log₂ e in float32 grows with |x|.
    assert (np.abs(exponentials(y) / exact - 1) <= 3e-7 + 6e-8 * np.abs(y)).all()
    assert exponentials(np.array([-1e30], np.float32))[0] == pytest.approx(math.exp(-87), rel=1e-5)


def test_true_values_are_normal():
    """With two random arms, the loss is 0 or √2 times half a normal."""
    regrets = run(
        EpsilonGreedy(epsilon=1.0), GaussianRewards(num_arms=2), num_runs=8192, num_steps=1
    ).final_regrets  # fmt: skip
    edges = np.arange(1, 25) * 0.12
    cdf = np.array([math.erf(x / 2) for x in edges])
    law = np.append(0.5, np.diff(np.concatenate([[0.0], cdf, [1.0]])) / 2)
    counts = np.append((regrets == 0).sum(), np.bincount(np.digitize(regrets[regrets > 0], edges)))
    assert_law(counts, law)


def test_noise_of_neighboring_steps_is_independent():
    """The variance of a mean of n independent rewards is 1/n of a single one's."""
    means = (0.0, 0.0)
    for num_steps in (1, 2, 3, 4, 8):
        result = run(
            EpsilonGreedy(), GaussianRewards(means=means), num_runs=100_000, num_steps=num_steps
        )
        variance = result.mean_reward.se**2 * 100_000
        assert variance * num_steps == pytest.approx(1, abs=5 * math.sqrt(2 / 100_000))


def test_neighboring_runs_and_streams_are_independent():
    counters = np.zeros((4, 4), u32)
    counters[:, 2] = [1, 2, 3, 4]
    streams = all_words(counters, np.zeros((4, 2), u32))
    assert len(np.unique(streams)) == 16
    words = many_words(200_000)
    bits = (words[1:, 0] ^ words[:-1, 0])[:, None] >> np.arange(32, dtype=u32) & u32(1)
    chi = ((bits.mean(axis=0) - 0.5) ** 2 * 4 * len(bits)).sum()
    assert chi < critical(32)
