"""Advantages of tensors equal those of arrays, with the same errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hotloop.errors import ConfigError, ShapeError
from hotloop.ops import explained_variance, gae

FACTORS = {"gamma": 0.97, "gae_lambda": 0.9}


def fragment(num_steps, num_envs, seed=0):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.standard_normal((3, num_steps, num_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, num_steps, num_envs)) < 0.2
    return reward, value, next_value, terminated, truncated


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (7, 3), (64, 5)])
def test_equals_advantages_of_arrays(shape):
    arrays = fragment(*shape)
    tensors = [torch.from_numpy(x) for x in arrays]
    actual = gae(*tensors, **FACTORS)
    assert isinstance(actual, torch.Tensor)
    np.testing.assert_allclose(actual.numpy(), gae(*arrays, **FACTORS), rtol=1e-5, atol=1e-5)


def test_termination_ignores_a_next_value_of_nan():
    reward, value = torch.zeros(2, 1), torch.zeros(2, 1)
    next_value = torch.tensor([[math.nan], [1.0]])
    terminated, truncated = torch.tensor([[True], [False]]), torch.zeros(2, 1, dtype=torch.bool)
    actual = gae(reward, value, next_value, terminated, truncated, gamma=0.5, gae_lambda=1.0)
    assert actual.tolist() == [[0.0], [0.5]]


def test_bad_arguments():
    tensors = [torch.from_numpy(x) for x in fragment(4, 2)]
    with pytest.raises(ShapeError, match=r"`value` must have the shape of `reward`, \(4, 2\)"):
        gae(tensors[0], tensors[1].T, *tensors[2:], **FACTORS)
    with pytest.raises(ShapeError, match="`truncated` must be bool"):
        gae(*tensors[:4], tensors[4].int(), **FACTORS)
    with pytest.raises(ShapeError, match="time-major"):
        gae(tensors[0][0], *tensors[1:], **FACTORS)
    with pytest.raises(ConfigError, match="`gamma` must lie in"):
        gae(*tensors, gamma=1.5, gae_lambda=1.0)


def test_explained_variance_equals_that_of_arrays():
    value, returns = np.random.default_rng(1).standard_normal((2, 100)).astype(np.float32)
    actual = explained_variance(torch.from_numpy(value), torch.from_numpy(returns))
    assert actual == pytest.approx(explained_variance(value, returns), rel=1e-9)
    assert math.isnan(explained_variance(torch.ones(3), torch.ones(3)))
