import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError, ShapeError
from hotloop.policies import ActingPolicy, ObsScale, PolicySnapshot
from hotloop.policies.learned import LearnedNetwork
from tests.policies.test_policies import BOX, SPECS, random_policy

MEAN = np.array([1.0, -2.0, 0.0, 3.0], np.float32)
STD = np.array([2.0, 0.5, 1.0, 4.0], np.float32)
SCALE = ObsScale(MEAN, STD, clip=2.0)


def scaled_policy(action_spec):
    network, params, plain = random_policy(action_spec)
    return plain, ActingPolicy(network, PolicySnapshot(3, params, SCALE))


def test_scaling_worked_out_by_hand():
    obs = np.array([[3.0, -2.0, 0.5, -1.0], [100.0, -2.5, -7.0, 3.0]], np.float32)
    want = np.array([[1.0, 0.0, 0.5, -1.0], [2.0, -1.0, -2.0, 0.0]], np.float32)
    np.testing.assert_array_equal(SCALE.apply(obs), want)
    np.testing.assert_array_equal(SCALE.apply(obs[0]), want[0])
    np.testing.assert_array_equal(SCALE.apply(obs[:, None]), want[:, None])
    np.testing.assert_array_equal(SCALE.tiled(2).apply(obs), want)
    for dtype in (np.float64, np.int64):
        got = SCALE.apply(obs.astype(dtype))
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, SCALE.apply(obs.astype(dtype).astype(np.float32)))
    out = np.empty_like(obs)
    assert SCALE.apply(obs, out) is out
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(SCALE.apply(obs, obs), want)


@pytest.mark.parametrize("kind", SPECS)
def test_acting_scaled_is_acting_on_what_was_scaled(kind):
    plain, policy = scaled_policy(SPECS[kind])
    rng = np.random.default_rng(0)
    for size in (6, 2, 6):
        obs = rng.normal(1.0, 5.0, (size, 4)).astype(np.float32)
        raw, seen = obs.copy(), SCALE.apply(obs)
        np.testing.assert_array_equal(policy.head(obs), plain.head(seen))
        np.testing.assert_array_equal(policy.value(obs), plain.value(seen))
        np.testing.assert_array_equal(policy.greedy(obs), plain.greedy(seen))
        np.testing.assert_array_equal(policy.act(obs), plain.act(seen))
        np.testing.assert_array_equal(policy.act(obs[0]), plain.act(seen[0]))
        draws = [
            p.act(o, deterministic=False, rng=np.random.default_rng(1))
            for p, o in ((policy, obs), (plain, seen))
        ]
        np.testing.assert_array_equal(*draws)
        np.testing.assert_array_equal(obs, raw)
        assert not np.array_equal(policy.head(obs), plain.head(obs))


def test_what_is_trained_on_is_what_acts():
    _, policy = scaled_policy(BOX)
    obs = np.random.default_rng(0).normal(1.0, 5.0, (5, 3, 4)).astype(np.float32)
    seen = policy.scaled(obs)
    np.testing.assert_array_equal(seen, SCALE.apply(obs))
    out = np.empty_like(obs)
    assert policy.scaled(obs, out) is out
    np.testing.assert_array_equal(out, seen)
    _, params, _ = random_policy(BOX)
    learned = LearnedNetwork(policy.network)
    head, value = learned.outputs(
        learned.layout.pack(params), torch.from_numpy(seen.reshape(15, 4))
    )
    np.testing.assert_allclose(policy.head(obs.reshape(15, 4)), head, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.value(obs.reshape(15, 4)), value, rtol=1e-4, atol=1e-5)


def test_without_a_scale_observations_are_float32():
    plain, _ = scaled_policy(BOX)
    obs = np.ones((2, 4), np.float32)
    assert plain.scaled(obs) is obs
    assert plain.scaled(np.ones((2, 4), np.uint8)).dtype == np.float32
    out = np.empty((2, 4), np.float32)
    assert plain.scaled(np.ones((2, 4)), out) is out
    assert (out == 1).all()


def test_a_scale_comes_and_goes_with_the_snapshot():
    plain, policy = scaled_policy(BOX)
    _, params, _ = random_policy(BOX)
    obs = np.random.default_rng(0).normal(1.0, 5.0, (6, 4)).astype(np.float32)
    other = ObsScale(MEAN + 1, STD, clip=2.0)
    policy.head(obs)
    policy.load(PolicySnapshot(4, params, other))
    np.testing.assert_array_equal(policy.head(obs), plain.head(other.apply(obs)))
    policy.load(PolicySnapshot(5, params))
    np.testing.assert_array_equal(policy.head(obs), plain.head(obs))


def test_scales_that_make_no_sense():
    with pytest.raises(ShapeError, match=r"float32 of the observation's shape, got float64 \(4,\)"):
        ObsScale(MEAN.astype(np.float64), STD, clip=10.0)
    with pytest.raises(ShapeError, match=r"and float32 \(3,\)"):
        ObsScale(MEAN, STD[:3], clip=10.0)
    for std, clip in ((0 * STD, 10.0), (STD, 0.0), (np.nan * STD, 10.0)):
        with pytest.raises(ConfigError, match="must be positive"):
            ObsScale(MEAN, std, clip)
    network, params, _ = random_policy(BOX)
    with pytest.raises(CheckpointError, match=r"`obs_scale` must have shape \(4,\), got \(3,\)"):
        ActingPolicy(network, PolicySnapshot(3, params, ObsScale(MEAN[:3], STD[:3], 1.0)))
