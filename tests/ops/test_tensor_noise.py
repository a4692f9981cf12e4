"""Noise drawn as tensors: words of the reference Philox, and the numbers of the NumPy version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotloop.ops import counter_normal, counter_uniform, tensor_noise
from tests.reference import philox

SEED, STEP = 0x1234_5678_9ABC_DEF0, 5_000_000_000
BLOCK = {"num_steps": 3, "num_envs": 5}


@pytest.mark.parametrize(
    ("counter", "key"),
    [
        ((0, 0, 0, 0), (0, 0)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
    ],
)
def test_words_match_the_reference(counter, key):
    words = tensor_noise.philox_4x32(tuple(map(torch.tensor, counter)), torch.tensor(key))
    assert tuple(words.tolist()) == philox.philox_4x32(counter, key)


@pytest.mark.parametrize("size", [1, 4, 6])
@pytest.mark.parametrize("stream", [0, 2])
def test_uniform_matches_numpys_up_to_the_last_bits(size, stream):
    key = tensor_noise.seed_key(SEED, "cpu")
    actual = tensor_noise.uniform(key, torch.tensor(STEP), **BLOCK, size=size, stream=stream)
    expected = counter_uniform(SEED, first_step=STEP, **BLOCK, size=size, stream=stream)
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    assert np.abs(actual.numpy() - expected).max() <= 2.0**-23


def test_normal_matches_numpys_up_to_the_last_bits():
    key = tensor_noise.seed_key(SEED, "cpu")
    actual = tensor_noise.normal(key, torch.tensor(STEP), **BLOCK, size=3)
    expected = counter_normal(SEED, first_step=STEP, **BLOCK, size=3)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-4)


def test_gumbel_is_computed_from_the_uniform_numbers():
    key, step = tensor_noise.seed_key(7, "cpu"), torch.tensor(0)
    got = tensor_noise.gumbel(key, step, **BLOCK, size=2)
    uniform = tensor_noise.uniform(key, step, **BLOCK, size=2).double()
    np.testing.assert_allclose(got.numpy(), -np.log(-np.log(uniform.numpy())), rtol=1e-4, atol=1e-5)


def test_extreme_words_stay_within_the_bounds(monkeypatch):
    words = torch.tensor([0, 0xFFFFFFFF, 0, 0xFFFFFFFF])
    monkeypatch.setattr(tensor_noise, "philox_4x32", lambda *_: words.expand(1, 1, 1, 4))
    shape = {"num_steps": 1, "num_envs": 1, "size": 4}
    uniform = tensor_noise.uniform(tensor_noise.seed_key(0, "cpu"), torch.tensor(0), **shape)
    assert 0.0 < uniform.min() < uniform.max() < 1.0
    assert (
        tensor_noise.gumbel(tensor_noise.seed_key(0, "cpu"), torch.tensor(0), **shape)
        .isfinite()
        .all()
    )


def test_steps_do_not_depend_on_their_block():
    key = tensor_noise.seed_key(3, "cpu")
    whole = tensor_noise.uniform(key, torch.tensor(10), num_steps=4, num_envs=2, size=5)
    part = tensor_noise.uniform(key, torch.tensor(12), num_steps=2, num_envs=2, size=5)
    assert torch.equal(whole[2:], part)
