"""Advantages of arrays and of tensors, compared with literals and the reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop import gae
from hotloop.errors import ConfigError, ShapeError
from hotloop.ops import explained_variance
from tests.ops.conftest import KINDS, caller
from tests.reference import advantages as reference


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


NEVER = column(False, False, False, dtype=bool)
MIDDLE = column(False, True, False, dtype=bool)
STEPS = {
    "reward": column(1.0, 2.0, 3.0),
    "value": column(0.5, 1.0, 1.5),
    "gamma": 0.9,
    "gae_lambda": 0.5,
}


def test_literal_without_episode_end(call):
    # δ = 1.4, 2.35, 3.3; γλ = 0.45.
    actual = call(gae, next_value=column(1.0, 1.5, 2.0), terminated=NEVER, truncated=NEVER, **STEPS)
    np.testing.assert_allclose(actual[:, 0], [3.12575, 3.835, 3.3], rtol=1e-6)
    assert actual.dtype == np.float32


def test_literal_with_termination(call):
    # δ₁ = 2 − 1: next_value is ignored.
    actual = call(
        gae, next_value=column(1.0, 77.0, 2.0), terminated=MIDDLE, truncated=NEVER, **STEPS
    )
    np.testing.assert_allclose(actual[:, 0], [1.85, 1.0, 3.3], rtol=1e-6)


def test_literal_with_truncation(call):
    # δ₁ = 2 + 0.9 · 4 − 1: bootstrapped from the successor, but the recursion ends.
    actual = call(
        gae, next_value=column(1.0, 4.0, 2.0), terminated=NEVER, truncated=MIDDLE, **STEPS
    )
    np.testing.assert_allclose(actual[:, 0], [3.47, 4.6, 3.3], rtol=1e-6)


def test_both_flags_count_as_termination(call):
    both = call(gae, next_value=column(1.0, 4.0, 2.0), terminated=MIDDLE, truncated=MIDDLE, **STEPS)
    single = call(
        gae, next_value=column(1.0, 4.0, 2.0), terminated=MIDDLE, truncated=NEVER, **STEPS
    )
    np.testing.assert_array_equal(both, single)


@given(
    num_steps=st.integers(1, 12),
    num_envs=st.integers(1, 3),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(KINDS)),
)
def test_equals_the_defining_sum(num_steps, num_envs, gamma, gae_lambda, seed, kind):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    reward, value, next_value = rng.standard_normal((3, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    arguments = (reward, value, next_value, terminated, truncated)
    actual = caller(kind)(gae, *arguments, gamma=gamma, gae_lambda=gae_lambda)
    expected = reference.gae(*arguments, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_flags_must_be_bool(dtype, call):
    with pytest.raises(ShapeError, match="`terminated` must be bool, got"):
        call(gae, next_value=NEVER, terminated=MIDDLE.astype(dtype), truncated=NEVER, **STEPS)


def test_factors_must_be_fractions(call):
    for name in ("gamma", "gae_lambda"):
        with pytest.raises(ConfigError, match=f"`{name}` must lie in"):
            call(gae, next_value=NEVER, terminated=NEVER, truncated=NEVER, **{**STEPS, name: 2.0})


def test_shapes_must_agree(call):
    with pytest.raises(ShapeError, match=r"`value` must have the shape of `reward`, \(3, 1\)"):
        call(
            gae,
            **{**STEPS, "value": STEPS["value"].T},
            next_value=NEVER,
            terminated=NEVER,
            truncated=NEVER,
        )
    empty = np.zeros((0, 3), np.float32)
    with pytest.raises(ShapeError, match="T ≥ 1"):
        call(gae, empty, empty, empty, empty > 0, empty > 0, gamma=0.9, gae_lambda=0.9)
    flat = np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match="time-major"):
        call(gae, flat, flat, flat, flat > 0, flat > 0, gamma=0.9, gae_lambda=0.9)


def test_explained_variance_literal(call):
    returns = np.array([1.0, 2.0, 3.0, 4.0], np.float32)  # variance 1.25
    residual = np.array([0.5, -0.5, 0.5, -0.5], np.float32)  # variance 0.25
    assert call(explained_variance, returns - residual, returns) == pytest.approx(0.8)
    assert np.isnan(call(explained_variance, returns, np.ones(4, np.float32)))


def test_explained_variance_of_large_values_is_exact(call):
    returns = np.array([1e8, 1e8 + 8, 1e8 + 16], np.float32)  # float32 has steps of 8 there
    value = np.array([1.0, 2.0, 3.0], np.float32)
    assert call(explained_variance, value, returns) == pytest.approx(1 - 49 / 64)


def test_termination_ignores_a_next_value_of_nan(call):
    zeros, flags = np.zeros((2, 1), np.float32), np.array([[True], [False]])
    next_value = np.array([[math.nan], [1.0]], np.float32)
    actual = call(gae, zeros, zeros, next_value, flags, flags & False, gamma=0.5, gae_lambda=1.0)
    assert actual.tolist() == [[0.0], [0.5]]
