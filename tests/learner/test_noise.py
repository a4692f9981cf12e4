"""Noise of updates: one tensor a shape, and the generator's own numbers."""

import numpy as np
import torch

from hotloop.learner.noise import UpdateNoise

CPU = torch.device("cpu")


def test_the_numbers_are_the_generators():
    noise, peer = UpdateNoise(np.random.default_rng(3), CPU), np.random.default_rng(3)
    for shape in ((2, 3), (4,), (2, 3), (), (2, 3)):
        drawn = noise.draw(shape)
        assert (drawn.dtype, tuple(drawn.shape)) == (torch.float32, shape)
        np.testing.assert_array_equal(drawn, peer.standard_normal(shape, dtype=np.float32))


def test_a_shape_has_one_tensor():
    noise = UpdateNoise(np.random.default_rng(3), CPU)
    first = noise.draw((2, 3))
    kept = first.clone()
    assert noise.draw((3, 2)) is not first
    assert torch.equal(first, kept)  # other shapes leave it alone
    assert noise.draw((2, 3)) is first
    assert not torch.equal(first, kept)


def test_on_the_cpu_the_host_generator_is_all():
    noise = UpdateNoise(np.random.default_rng(3), CPU)
    assert noise.to_json() is None
    noise.load(None)
    noise.load([1, 2, 3])  # of a run that was on a GPU
    assert noise.draw((1,)).shape == (1,)
