"""Ornstein-Uhlenbeck and pink noise: literals, moments and spectra."""

import math

import numpy as np
import pytest

from hotloop.errors import ConfigError
from hotloop.policies import OrnsteinUhlenbeckNoise, PinkNoise
from hotloop.policies.exploration import EpisodeNoise


def draw_first_chunks(noise, num_envs, size=4):
    """Return the first chunk of many environments, (N, C, A)."""
    chunks = [
        noise.draw_chunk(1, env=env, first_step=40, size=size, state=None)[0]
        for env in range(num_envs)
    ]
    return np.stack(chunks)


def test_ornstein_uhlenbeck_by_hand():
    """With θ = 0.5, x is halved in each step, and σ is √(1 − 0.25) = 0.8660."""
    noise = OrnsteinUhlenbeckNoise(std=1.0, theta=0.5)
    numbers, state = noise.correlate(np.float32([[1.0], [0.0], [2.0]]), None)
    np.testing.assert_allclose(numbers[:, 0], [0.8660, 0.4330, 1.9486], atol=1e-4)
    numbers, _ = noise.correlate(np.float32([[0.0], [1.0]]), state)
    np.testing.assert_allclose(numbers[:, 0], [0.9743, 1.3532], atol=1e-4)


def test_pink_noise_by_hand():
    """The response of four steps to 1, 0, 0, 0.

    The amplitudes of the frequencies 0, ±1/4, 1/2 are 1, 1 and 1/√2. The sum of their squares,
    3.5, is divided by 4, so all are divided by √0.875.
    """
    numbers, state = PinkNoise(std=1.0, num_steps=4).correlate(
        np.float32([[1.0], [0.0], [0.0], [0.0]]), None
    )
    np.testing.assert_allclose(numbers[:, 0], [0.9907, 0.0783, -0.0783, 0.0783], atol=1e-4)
    assert state is None


@pytest.mark.parametrize("num_steps", [64, 63])
def test_pink_noise_has_a_spectrum_of_one_over_f_and_variance_1(num_steps):
    chunks = draw_first_chunks(PinkNoise(std=2.0, num_steps=num_steps), 1_000) / 2.0
    assert chunks.shape == (1_000, num_steps, 4)
    # The variance of a mean of squares of 4,000 numbers is 2/4,000.
    np.testing.assert_allclose(np.square(chunks).mean(axis=(0, 2)), 1.0, atol=5 * 0.0224)
    power = np.square(np.abs(np.fft.rfft(chunks, axis=1))).mean(axis=(0, 2))
    frequencies = np.arange(1, num_steps // 2)
    slope, _ = np.polyfit(np.log(frequencies), np.log(power[1 : num_steps // 2]), 1)
    assert abs(slope + 1.0) < 0.02
    # Every time scale matters: distant steps stay correlated.
    lag = (chunks[:, 0] * chunks[:, 8]).mean()
    assert lag > 0.1


def test_ornstein_uhlenbeck_is_correlated_over_short_times():
    """The correlation of two steps is 0.85 to the power of their distance."""
    chunks = draw_first_chunks(OrnsteinUhlenbeckNoise(std=0.5), 1_000) / 0.5
    error = 5 / math.sqrt(4_000)
    first, late = chunks[:, 0], chunks[:, 100]
    # σ² = 1 − 0.85² = 0.2775 in the first step, and 1 after many.
    np.testing.assert_allclose(np.square(first).mean(), 0.2775, atol=2 * error)
    np.testing.assert_allclose(np.square(late).mean(), 1.0, atol=2 * error)
    for distance, expected in ((1, 0.85), (4, 0.5220), (20, 0.0388)):
        actual = (late * chunks[:, 100 + distance]).mean()
        np.testing.assert_allclose(actual, expected, atol=2 * error)


@pytest.mark.parametrize("noise", [PinkNoise(std=1.0), OrnsteinUhlenbeckNoise(std=1.0)])
def test_episodes_and_environments_are_independent(noise):
    """Episodes that begin one after another in one environment share no numbers."""
    options = {"size": 40, "state": None}
    chunks = [
        noise.draw_chunk(1, env=env, first_step=first_step, **options)[0][:100]
        for env, first_step in ((0, 0), (0, 100), (0, 101), (1, 0))
    ]
    for other in chunks[1:]:
        # The mean product of 40 independent sequences, even if these were constant.
        assert abs((chunks[0] * other).mean()) < 4 / math.sqrt(40)
        overlap = (chunks[0][1:] * other[:-1]).mean(), (chunks[0] * other).mean()
        assert max(map(abs, overlap)) < 0.5
    again, _ = noise.draw_chunk(1, env=0, first_step=0, **options)
    np.testing.assert_array_equal(again[:100], chunks[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PinkNoise(std=-1.0), "`std` of PinkNoise must be a number from 0, got -1.0"),
        (lambda: PinkNoise(std=0.1, num_steps=1), "`num_steps` of PinkNoise must be at least 2"),
        (lambda: OrnsteinUhlenbeckNoise(std=0.1, theta=0.0), "`theta` of .* above 0 and at most 1"),
        (lambda: OrnsteinUhlenbeckNoise(std=0.1, theta=1.5), "`theta` of .* got 1.5"),
    ],
)
def test_values_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("chunk_steps", "correlate", "message"),
    [
        (0, None, "`chunk_steps` of Custom must be a positive integer, got 0"),
        (2.5, None, "`chunk_steps` of Custom must be a positive integer, got 2.5"),
        (4, lambda white, state: white, "must return the noise and the state .* got ndarray"),
        (4, lambda white, state: (white[1:], state), r"shape \(C, A\) = \(4, 2\), got .* \(3, 2\)"),
        (4, lambda white, state: (white * np.nan, state), "that are no finite numbers"),
        (4, lambda white, state: ([["a"] * 2] * 4, state), "must return finite numbers"),
    ],
)
def test_noise_of_the_users_own_is_checked(chunk_steps, correlate, message):
    methods = {
        "chunk_steps": property(lambda self: chunk_steps),
        "correlate": lambda self, white, state: correlate(white, state),
    }
    noise = type("Custom", (EpisodeNoise,), methods)(std=1.0)
    with pytest.raises(ConfigError, match=message):
        noise.draw_chunk(1, env=0, first_step=0, size=2, state=None)
