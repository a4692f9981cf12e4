import numpy as np
import pytest

from hotloop.errors import CheckpointError, ConfigError, ShapeError
from hotloop.policies import ActingPolicy, ObsScale, PolicySnapshot
from tests.policies.test_policies import BOX, SPECS, random_policy

MEAN = np.array([1.0, -2.0, 0.0, 3.0], np.float32)
STD = np.array([2.0, 0.5, 1.0, 4.0], np.float32)
SCALE = ObsScale(MEAN, STD, clip=2.0)


def scaled_policy(action_spec):
    network, params, plain = random_policy(action_spec)
    return plain, ActingPolicy(network, PolicySnapshot(3, params, SCALE))


def test_scaling_matches_hand_computed_values():
    obs = np.array([[3.0, -2.0, 0.5, -1.0], [100.0, -2.5, -7.0, 3.0]], np.float32)
    expected = np.array([[1.0, 0.0, 0.5, -1.0], [2.0, -1.0, -2.0, 0.0]], np.float32)
    np.testing.assert_array_equal(SCALE.apply(obs), expected)
    np.testing.assert_array_equal(SCALE.apply(obs[0]), expected[0])
    np.testing.assert_array_equal(SCALE.apply(obs[:, None]), expected[:, None])
    for dtype in (np.float64, np.int64):
        actual = SCALE.apply(obs.astype(dtype))
        assert actual.dtype == np.float32
        np.testing.assert_array_equal(actual, SCALE.apply(obs.astype(dtype).astype(np.float32)))
    out = np.empty_like(obs)
    assert SCALE.apply(obs, out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(SCALE.apply(obs, obs), expected)


@pytest.mark.parametrize("kind", SPECS)
def test_scaled_policy_acts_on_scaled_observations(kind):
    plain, policy = scaled_policy(SPECS[kind])
    rng = np.random.default_rng(0)
    for size in (6, 2, 6):
        obs = rng.normal(1.0, 5.0, (size, 4)).astype(np.float32)
        copy, scaled = obs.copy(), SCALE.apply(obs)
        out = np.empty_like(obs)
        assert policy.scaled(obs, out) is out
        np.testing.assert_array_equal(out, scaled)
        np.testing.assert_array_equal(policy.head(obs), plain.head(scaled))
        np.testing.assert_array_equal(policy.value(obs), plain.value(scaled))
        np.testing.assert_array_equal(policy.greedy(obs), plain.greedy(scaled))
        samples = [
            acting.sample(policy_obs, np.random.default_rng(1))
            for acting, policy_obs in ((policy, obs), (plain, scaled))
        ]
        np.testing.assert_array_equal(*samples)
        np.testing.assert_array_equal(obs, copy)
        assert not np.array_equal(policy.head(obs), plain.head(obs))


def test_without_a_scale_observations_are_float32():
    plain, _ = scaled_policy(BOX)
    obs = np.ones((2, 4), np.float32)
    assert plain.scaled(obs) is obs
    assert plain.scaled(np.ones((2, 4), np.uint8)).dtype == np.float32
    out = np.empty((2, 4), np.float32)
    assert plain.scaled(np.ones((2, 4)), out) is out
    assert (out == 1).all()


def test_loading_a_snapshot_replaces_the_scale():
    plain, policy = scaled_policy(BOX)
    _, params, _ = random_policy(BOX)
    obs = np.random.default_rng(0).normal(1.0, 5.0, (6, 4)).astype(np.float32)
    other = ObsScale(MEAN + 1, STD, clip=2.0)
    policy.head(obs)
    policy.load(PolicySnapshot(4, params, other))
    np.testing.assert_array_equal(policy.head(obs), plain.head(other.apply(obs)))
    policy.load(PolicySnapshot(5, params))
    np.testing.assert_array_equal(policy.head(obs), plain.head(obs))


def test_bad_scales_are_refused():
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
