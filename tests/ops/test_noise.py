"""Noise of arrays and of tensors: words of the reference Philox, and the laws of the numbers."""

from functools import partial

import numpy as np
import pytest
import torch

from hotloop.ops import counter_normal, counter_uniform, noise
from hotloop.ops.noise import counter_gumbel, device_seed, philox_4x32
from tests.reference import philox as reference

SEED, STEP = 0x1234_5678_9ABC_DEF0, 5_000_000_000
BLOCK = {"num_steps": 3, "num_envs": 5}


def on_device(draw, seed, *, first_step, **block):
    """Return noise drawn as tensors, as an array."""
    return draw(device_seed(seed, "cpu"), first_step=torch.tensor(first_step), **block).numpy()


# Known answers published with the generator (Random123, kat_vectors, philox4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
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


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected, kind):
    words = tuple(kind([c]) for c in counter)
    assert tuple(philox_4x32(words, kind(key))[0].tolist()) == expected
    assert reference.philox_4x32(counter, key) == expected


def test_uniform_matches_the_reference():
    actual = counter_uniform(
        (5 << 32) + 7, first_step=2**32 + 3, num_steps=2, num_envs=2, size=6, first_env=4, stream=9
    )
    for t in range(2):
        for n in range(2):
            for i in range(6):
                counter = (3 + t, 1 ^ 9, 4 + n, i // 4)
                word = reference.philox_4x32(counter, (7, 5))[i % 4]
                assert actual[t, n, i] == (word + 0.5) * 2.0**-32


DRAWS = {
    "uniform": counter_uniform,
    "normal": counter_normal,
    "gumbel": counter_gumbel,
    "device uniform": partial(on_device, counter_uniform),
    "device normal": partial(on_device, counter_normal),
    "device gumbel": partial(on_device, counter_gumbel),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_noise_depends_only_on_step_and_environment(draw):
    whole = draw(3, first_step=0, num_steps=10, num_envs=6, size=5)
    part = draw(3, first_step=4, num_steps=3, num_envs=2, size=5, first_env=3)
    np.testing.assert_array_equal(whole[4:7, 3:5], part)
    assert not np.array_equal(whole, draw(4, first_step=0, num_steps=10, num_envs=6, size=5))
    other = draw(3, first_step=0, num_steps=10, num_envs=6, size=5, stream=1)
    assert not np.intersect1d(whole, other).size


def test_normal_has_the_moments_of_a_normal():
    x = counter_normal(0, first_step=0, num_steps=1000, num_envs=20, size=3).astype(np.float64)
    assert x.dtype == np.float64
    assert abs(x.mean()) < 4 / np.sqrt(x.size)
    assert abs(x.var() - 1) < 4 * np.sqrt(2 / x.size)
    assert abs((x**4).mean() - 3) < 4 * np.sqrt(96 / x.size)
    correlation = np.corrcoef(x.reshape(-1, 3).T) - np.eye(3)
    assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


def test_uniform_excludes_its_bounds():
    x = counter_uniform(0, first_step=0, num_steps=100, num_envs=100, size=8)
    assert 0 < x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1


@pytest.mark.parametrize("size", [1, 4, 6])
@pytest.mark.parametrize("stream", [0, 2])
def test_uniform_numbers_on_a_device_are_the_same_up_to_the_last_bits(size, stream):
    block = {**BLOCK, "first_step": STEP, "size": size, "stream": stream}
    actual = on_device(counter_uniform, SEED, **block)
    assert actual.dtype == np.float32
    assert np.abs(actual - counter_uniform(SEED, **block)).max() <= 2.0**-23


def test_other_numbers_on_a_device_are_the_same_up_to_the_last_bits():
    block = {**BLOCK, "first_step": STEP, "size": 3}
    for draw in (counter_normal, counter_gumbel):
        actual, expected = on_device(draw, SEED, **block), draw(SEED, **block)
        assert actual.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(actual, expected, atol=1e-4)


@pytest.mark.parametrize("draw", [counter_gumbel, partial(on_device, counter_gumbel)])
def test_gumbel_is_computed_from_the_uniform_numbers(draw):
    uniform = counter_uniform(7, first_step=0, **BLOCK, size=2)
    got = draw(7, first_step=0, **BLOCK, size=2)
    np.testing.assert_allclose(got, -np.log(-np.log(uniform)), rtol=1e-4, atol=1e-5)


def test_extreme_words_stay_within_the_bounds_on_a_device(monkeypatch):
    words = torch.tensor([0, 0xFFFFFFFF, 0, 0xFFFFFFFF])
    monkeypatch.setattr(noise, "philox_4x32", lambda *_: words.expand(1, 1, 1, 4))
    block = {"first_step": 0, "num_steps": 1, "num_envs": 1, "size": 4}
    uniform = on_device(counter_uniform, 0, **block)
    assert 0.0 < uniform.min() < uniform.max() < 1.0
    assert np.isfinite(on_device(counter_gumbel, 0, **block)).all()
