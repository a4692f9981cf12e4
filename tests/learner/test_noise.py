"""Noise of updates: from a generator, or numbered by batch."""

import math

import numpy as np
import pytest
import torch

from hotloop.learner.noise import HostNoise, NumberedNoise

CPU = torch.device("cpu")


def test_host_noise_comes_from_the_generator():
    noise, peer = HostNoise(np.random.default_rng(3)), np.random.default_rng(3)
    for number, shape in enumerate(((2, 3), (4,), (2, 3), (), (2, 3))):
        values = noise.draw(shape, number)
        assert (values.dtype, tuple(values.shape)) == (torch.float32, shape)
        np.testing.assert_array_equal(values, peer.standard_normal(shape, dtype=np.float32))


def test_a_shape_has_one_tensor():
    noise = HostNoise(np.random.default_rng(3))
    first = noise.draw((2, 3), 0)
    copied = first.clone()
    assert noise.draw((3, 2), 0) is not first
    assert torch.equal(first, copied)  # other shapes do not change it
    assert noise.draw((2, 3), 0) is first
    assert not torch.equal(first, copied)


def test_numbered_noise_follows_the_batch():
    """Updates read their noise in order from the batch's row of the table."""
    noise, other = (NumberedNoise((1, 2), 12, CPU, most) for most in (1, 200))
    for number in (1, 2, 63, 64, 65, 200, 3):
        row = other.table.tensor[other.table.row_of(number)]
        first, second, third = (noise.draw(shape, number) for shape in ((2, 2), (3,), (5,)))
        assert torch.equal(torch.cat([first.view(4), second, third]), row)
    assert NumberedNoise((1, 2), 0, CPU).table is None


def test_numbered_noise_is_standard_normal():
    noise = NumberedNoise((5,), 10_000, CPU)
    values = torch.stack([noise.draw((10_000,), number) for number in range(100)])
    for x in (values, values.T[:100]):
        assert float(x.mean()) == pytest.approx(0.0, abs=5 / math.sqrt(x.numel()))
        assert float(x.std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * x.numel()))
    assert len(values.unique()) > 0.9 * values.numel()
