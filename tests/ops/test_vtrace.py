"""V-trace compared with hand-computed values and the reference implementation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotloop import gae
from hotloop.errors import ConfigError, ShapeError
from hotloop.ops import vtrace
from tests.ops.conftest import KINDS, caller
from tests.reference import advantages as reference


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


NEVER = column(False, False, dtype=bool)
FIRST = column(True, False, dtype=bool)
STEPS = {
    "reward": column(1.0, 2.0),
    "value": column(0.5, 1.0),
    "next_value": column(1.0, 2.0),
    "log_ratio": np.log(column(0.5, 2.0)),
    "gamma": 0.5,
    "gae_lambda": 1.0,
}


def test_literal_without_episode_end(call):
    # δ = 1 + 0.5 − 0.5 = 1, 2 + 1 − 1 = 2; ρ = 0.5, 1; c = 0.5, 1.
    # v₁ = 1 + 2 = 3; v₀ = 0.5 + 0.5 · 1 + 0.5 · 0.5 · 2 = 1.5.
    # A₁ = 2; A₀ = 1 + 0.5 · 2 = 2.
    actual = call(vtrace, terminated=NEVER, truncated=NEVER, **STEPS)
    np.testing.assert_allclose(actual.returns[:, 0], [1.5, 3.0], rtol=1e-6)
    np.testing.assert_allclose(actual.advantages[:, 0], [2.0, 2.0], rtol=1e-6)
    assert actual.returns.dtype == actual.advantages.dtype == np.float32


def test_any_numbers_give_float32_without_gradients(call):
    steps = {name: x.astype(np.float64) for name, x in STEPS.items() if isinstance(x, np.ndarray)}
    actual = call(vtrace, terminated=NEVER, truncated=NEVER, **(STEPS | steps))
    assert actual.returns.dtype == actual.advantages.dtype == np.float32
    tensors = {name: torch.from_numpy(x) for name, x in steps.items()}
    tensors["value"].requires_grad_()
    flags = torch.from_numpy(NEVER)
    actual = vtrace(terminated=flags, truncated=flags, **(STEPS | tensors))
    assert not actual.returns.requires_grad
    np.testing.assert_allclose(actual.returns[:, 0], [1.5, 3.0], rtol=1e-6)


def test_literal_with_other_bounds(call):
    # ρ̄ = 2: ρ₁ = 2, v₁ = 1 + 2 · 2 = 5; v₀ = 0.5 + 0.5 + 0.5 · 0.5 · 4 = 2.
    actual = call(vtrace, terminated=NEVER, truncated=NEVER, max_rho=2.0, **STEPS)
    np.testing.assert_allclose(actual.returns[:, 0], [2.0, 5.0], rtol=1e-6)


def test_literal_with_termination(call):
    # δ₀ = 1 − 0.5 = 0.5, and the recursion ends: v₀ = 0.5 + 0.5 · 0.5 = 0.75.
    actual = call(vtrace, terminated=FIRST, truncated=NEVER, **STEPS)
    np.testing.assert_allclose(actual.returns[:, 0], [0.75, 3.0], rtol=1e-6)
    np.testing.assert_allclose(actual.advantages[:, 0], [0.5, 2.0], rtol=1e-6)


def test_literal_with_truncation(call):
    # δ₀ = 1, bootstrapped; v₀ = 0.5 + 0.5 · 1 = 1.
    actual = call(vtrace, terminated=NEVER, truncated=FIRST, **STEPS)
    np.testing.assert_allclose(actual.returns[:, 0], [1.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(actual.advantages[:, 0], [1.0, 2.0], rtol=1e-6)


def random_steps(seed, num_steps, num_envs):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    steps = {
        name: rng.normal(0, 2, shape).astype(np.float32)
        for name in ("reward", "value", "next_value", "log_ratio")
    }
    return steps | {x: rng.random(shape) < 0.2 for x in ("terminated", "truncated")}


@given(
    num_steps=st.integers(1, 12),
    num_envs=st.integers(1, 3),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    max_c=st.floats(0.1, 2),
    extra=st.floats(0, 2),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(KINDS)),
)
def test_equals_the_defining_sums(num_steps, num_envs, gamma, gae_lambda, max_c, extra, seed, kind):
    options = {"gamma": gamma, "gae_lambda": gae_lambda, "max_c": max_c, "max_rho": max_c + extra}
    steps = random_steps(seed, num_steps, num_envs)
    actual = caller(kind)(vtrace, **steps, **options)
    returns, advantages = reference.vtrace(**steps, **options)
    np.testing.assert_allclose(actual.returns, returns, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(actual.advantages, advantages, rtol=1e-3, atol=1e-3)


@given(seed=st.integers(0, 2**31), gae_lambda=st.floats(0, 1))
def test_on_policy_vtrace_is_gae(seed, gae_lambda):
    steps = random_steps(seed, 9, 2)
    del steps["log_ratio"]
    got = vtrace(**steps, log_ratio=np.zeros((9, 2), np.float32), gamma=0.9, gae_lambda=gae_lambda)
    advantages = gae(**steps, gamma=0.9, gae_lambda=gae_lambda)
    np.testing.assert_allclose(got.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.returns, advantages + steps["value"], rtol=1e-4, atol=1e-5)


def test_extreme_ratios_are_clipped(call):
    steps = {**STEPS, "log_ratio": column(1000.0, -1000.0)}
    actual = call(vtrace, terminated=NEVER, truncated=NEVER, **steps)
    np.testing.assert_allclose(actual.returns[:, 0], [1.5, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"value": column(1.0)}, ShapeError, r"`value` must have the shape of `reward`, \(2, 1\)"),
        ({"reward": np.zeros(3, np.float32)}, ShapeError, "time-major"),
        ({"terminated": column(0, 1, dtype=int)}, ShapeError, "`terminated` must be bool"),
        ({"gamma": 1.5}, ConfigError, r"`gamma` must lie in \[0, 1\]"),
        ({"max_rho": 0.5}, ConfigError, "`max_rho` must be at least `max_c`"),
    ],
)
def test_bad_arguments(change, error, message, call):
    with pytest.raises(error, match=message):
        call(vtrace, **{**STEPS, "terminated": NEVER, "truncated": NEVER, **change})
