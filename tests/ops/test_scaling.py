"""Scaled observations, literally and alike for arrays and tensors; shares of a batch."""

import numpy as np
import pytest
import torch

from hotloop.ops.scaling import scale_obs
from hotloop.ops.shares import equal_shares

MEAN, STD = np.float32([1.0, -2.0]), np.float32([2.0, 0.5])


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64"])
def test_literal(call, dtype):
    obs = np.array([[[2, 0], [200, 1]]], dtype)
    scaled = call(scale_obs, obs, MEAN, STD, 10.0)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, [[[0.5, 4.0], [10.0, 6.0]]])


def test_bound_may_be_a_tensor():
    scaled = scale_obs(torch.tensor([5.0, -9.0]), *map(torch.tensor, (MEAN, STD, 1.5)))
    assert scaled.tolist() == [1.5, -1.5]


def test_result_is_written_in_place():
    obs = np.float32([[2.0, 0.0]])
    assert scale_obs(obs, MEAN, STD, np.inf, out=obs) is obs
    np.testing.assert_array_equal(obs, [[0.5, 4.0]])


def test_shares_are_equal():
    counts = np.array([1, 4, 10])
    weights = equal_shares(counts)
    np.testing.assert_allclose(weights, [5.0, 1.25, 0.5])  # the mean is 5
    np.testing.assert_allclose(weights * counts, 5.0)


def test_counts_of_several_sources():
    # 1, 1, 1 and 5: the mean is 2.
    np.testing.assert_allclose(equal_shares(np.array([1, 5]), np.array([3, 1])), [2.0, 0.4])
