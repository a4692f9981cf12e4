"""Statistics of fragments of tensors: those of the twin that takes arrays."""

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
    """The same steps as arrays and as tensors."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        arrays = Fragment.allocate(
            6, 3, obs_shape=(2,), obs_dtype="float32", action_shape=(), action_dtype="int64"
        )
        arrays.obs[...] = 3.0 + 2.0 * rng.standard_normal(arrays.obs.shape)
        arrays.reward[...] = rng.standard_normal(arrays.reward.shape)
        arrays.terminated[...], arrays.truncated[...] = rng.random((2, 6, 3)) < 0.15
        names = ("obs", "reward", "terminated", "truncated")
        tensors = {name: torch.from_numpy(getattr(arrays, name)) for name in names}
        yield arrays, SimpleNamespace(**tensors)


def both(**options):
    options = {**OPTIONS, **options}
    return Normalizer((2,), 3, **options), DeviceNormalizer((2,), 3, device=CPU, **options)


def test_equals_the_twin_fragment_by_fragment():
    host, device = both()
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
def test_what_is_switched_off_stays_as_it_is(name):
    _, device = both(**{name: False, "clip_obs": None, "clip_reward": None})
    ((_, tensors),) = fragments(1)
    device.update(tensors)
    if name == "normalize_obs":
        assert device.obs_scale is None
    else:
        assert device.reward(tensors.reward) is tensors.reward


def test_goes_on_bitwise_from_what_was_kept():
    _, device = both()
    _, other = both()
    given = [tensors for _, tensors in fragments(3)]
    device.update(given[0])
    kept = device.kept()
    device.update(given[1])  # which what was kept knows nothing of
    other.load(kept())
    other.update(given[1])
    for one in (device, other):
        one.restart([1])
        one.update(given[2])
    for name, array in device.kept()().items():
        np.testing.assert_array_equal(other.kept()()[name], array)


def test_arrays_are_named_as_the_twins():
    host, device = both()
    wanted, got = host.to_arrays(), device.kept()()
    assert {name: (x.shape, x.dtype) for name, x in got.items()} == {
        name: (x.shape, x.dtype) for name, x in wanted.items()
    }
