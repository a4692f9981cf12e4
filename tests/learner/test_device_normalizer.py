"""Statistics of fragments of tensors, compared with the host's normalizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hotloop.learner import Normalizer
from hotloop.learner.device_normalizer import DeviceNormalizer
from hotloop.types import Fragment

CPU = torch.device("cpu")
OPTIONS = {
    "normalize_obs": True,
    "normalize_reward": True,
    "clip_obs": 5.0,
    "clip_reward": 2.0,
    "gamma": 0.9,
}


def fragments(count, seed=0):
    """Yield equal steps as arrays and as tensors."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        arrays = Fragment.allocate(
            6, 3, obs_shape=(2,), obs_dtype="float32", action_shape=(), action_dtype="int64"
        )
        arrays.obs[...] = 3.0 + 2.0 * rng.standard_normal(arrays.obs.shape)
        arrays.obs[..., 1] = 1e6  # never changes
        arrays.reward[...] = rng.standard_normal(arrays.reward.shape)
        arrays.terminated[...], arrays.truncated[...] = rng.random((2, 6, 3)) < 0.15
        names = ("obs", "reward", "terminated", "truncated")
        tensors = {name: torch.from_numpy(getattr(arrays, name)) for name in names}
        yield arrays, SimpleNamespace(**tensors)


def make_pair(**options):
    options = {**OPTIONS, **options}
    return Normalizer((2,), 3, **options), DeviceNormalizer((2,), 3, device=CPU, **options)


def test_statistics_equal_the_hosts():
    host, device = make_pair()
    for arrays, tensors in fragments(4):
        host.update(arrays)
        device.update(tensors)
        for name in ("mean", "std"):
            got, want = getattr(device.obs_scale, name), getattr(host.obs_scale, name)
            np.testing.assert_allclose(got, want, rtol=1e-6)
        assert device.obs_scale.clip == host.obs_scale.clip
        got = device.reward(tensors.reward)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), host.reward(arrays.reward), rtol=1e-5)


@pytest.mark.parametrize("name", ["normalize_obs", "normalize_reward"])
def test_disabled_normalization_changes_nothing(name):
    _, device = make_pair(**{name: False, "clip_obs": None, "clip_reward": None})
    ((_, tensors),) = fragments(1)
    device.update(tensors)
    if name == "normalize_obs":
        assert device.obs_scale is None
    else:
        assert device.reward(tensors.reward) is tensors.reward


def test_snapshot_is_restored_bitwise():
    _, device = make_pair()
    _, other = make_pair()
    inputs = [tensors for _, tensors in fragments(3)]
    device.update(inputs[0])
    snapshot = device.array_snapshot()
    device.update(inputs[1])  # not in the snapshot
    other.load(snapshot())
    other.update(inputs[1])
    for normalizer in (device, other):
        normalizer.restart([1])
        normalizer.update(inputs[2])
    for name, array in device.array_snapshot()().items():
        np.testing.assert_array_equal(other.array_snapshot()()[name], array)


def test_arrays_have_the_hosts_names():
    host, device = make_pair()
    expected, got = host.to_arrays(), device.array_snapshot()()
    assert {name: (x.shape, x.dtype) for name, x in got.items()} == {
        name: (x.shape, x.dtype) for name, x in expected.items()
    }
