"""Running statistics of arrays, and of tensors on the CPU as a device."""

import dataclasses
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError
from hotloop.learner import Normalizer
from hotloop.learner.normalizers import RunningMoments, as_clip
from hotloop.policies import ObsScale
from hotloop.types import Fragment

OFF = {
    "normalize_obs": False,
    "normalize_reward": False,
    "clip_obs": None,
    "clip_reward": None,
    "gamma": 0.5,
}

CPU = torch.device("cpu")


@pytest.fixture(params=[None, CPU], ids=["arrays", "tensors"])
def device(request):
    """Return the device of a normalizer: None for arrays."""
    return request.param


@pytest.fixture
def make(device):
    """Return a function that makes a normalizer."""
    return partial(Normalizer, (2,), 2, device=device)


def place(device, x):
    """Return an array as the normalizer of a device takes it, or a fragment of such arrays."""
    if isinstance(x, Fragment):
        arrays = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
        return dataclasses.replace(
            x, **{name: place(device, y) for name, y in arrays.items() if hasattr(y, "dtype")}
        )
    return x if device is None else torch.from_numpy(x)


def make_fragment(reward, terminated=None, truncated=None, valid=None, obs=None):
    reward = np.asarray(reward, np.float32)
    fragment = Fragment.allocate(
        *reward.shape, obs_shape=(2,), obs_dtype=np.float32, action_shape=(), action_dtype=np.int64
    )
    fragment.reward[...] = reward
    for name, flags in (("terminated", terminated), ("truncated", truncated), ("valid", valid)):
        if flags is not None:
            getattr(fragment, name)[...] = flags
    if obs is not None:
        fragment.obs[...] = obs
    return fragment


def test_moments_are_those_of_all_rows_at_once(device):
    rng = np.random.default_rng(0)
    rows = (1e6 + rng.standard_normal((1000, 3))).astype(np.float64)
    moments = RunningMoments((3,), device)
    for part in np.split(rows, [1, 1, 7, 500, 999]):
        moments.update(place(device, part))
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-9)
    assert moments.count == 1000


def test_observations_literal():
    normalizer = Normalizer((2,), 2, **{**OFF, "normalize_obs": True, "clip_obs": 1.5})
    np.testing.assert_array_equal(normalizer.obs_scale.mean, [0.0, 0.0])
    np.testing.assert_array_equal(normalizer.obs_scale.std, [1.0, 1.0])
    obs = [[[0.0, 10.0], [2.0, 10.0]], [[4.0, 10.0], [1e9, np.pi]]]
    valid = [[True, True], [True, False]]  # invalid rows are not counted
    normalizer.update(make_fragment(np.zeros((2, 2)), obs=obs, valid=valid))
    scale = normalizer.obs_scale
    np.testing.assert_allclose(scale.mean, [2.0, 10.0])
    np.testing.assert_allclose(scale.std, [np.sqrt(8 / 3), 1.0])
    scaled = scale.apply(np.array([[2.0, 10.0], [1e3, 9.0]], np.float32))
    np.testing.assert_allclose(scaled, [[0.0, 0.0], [1.5, -1.0]], atol=1e-6)


def test_numbers_that_did_not_change_stay_moderate_if_they_change_later(make, device):
    normalizer = make(**{**OFF, "normalize_obs": True, "clip_obs": 10.0})
    stamp = np.float32(1.7e9)  # whose neighbors in float32 differ by 128
    obs = np.zeros((2, 2, 2), np.float32)
    obs[..., 1] = np.nextafter(stamp, np.float32(np.inf))
    obs[0, 0, 1] = stamp
    normalizer.update(place(device, make_fragment(np.zeros((2, 2)), obs=obs)))
    scaled = normalizer.obs_scale.apply(np.array([[1.0, 1.7e9], [-0.5, 1.7e9 + 256]], np.float32))
    np.testing.assert_allclose(scaled[:, 0], [1.0, -0.5])
    assert np.abs(scaled[:, 1]).max() < 2.0


def test_fixed_scale_is_used_without_normalization(make, device):
    fixed = ObsScale(np.ones(2, np.float32), np.full(2, 4.0, np.float32), np.inf)
    normalizer = make(**OFF, fixed_scale=fixed)
    normalizer.update(place(device, make_fragment(np.zeros((1, 2)), obs=7.0)))
    assert normalizer.obs_scale is fixed


def test_rewards_are_scaled_by_the_spread_of_discounted_returns(make, device):
    """γ = 0.5; returns carry over from fragment to fragment and stop where an episode ends."""
    normalizer = make(**{**OFF, "normalize_reward": True})
    terminated = [[False, False], [True, False], [False, False]]
    normalizer.update(
        place(device, make_fragment([[1.0, 4.0], [1.0, 0.0], [8.0, 0.0]], terminated=terminated))
    )
    returns = [1.0, 1.5, 8.0, 4.0, 2.0, 1.0]
    got = np.asarray(normalizer.reward(place(device, np.float32([[3.0, -6.0]]))))
    np.testing.assert_allclose(got, [[3 / np.std(returns), -6 / np.std(returns)]], rtol=1e-6)
    assert got.dtype == np.float32
    normalizer.update(place(device, make_fragment([[0.0, 1.0]], truncated=[[True, True]])))
    returns += [4.0, 1.5]
    normalizer.update(place(device, make_fragment([[2.0, 2.0]])))
    returns += [2.0, 2.0]
    got = np.asarray(normalizer.reward(place(device, np.float32([[1.0, 0.0]]))))
    np.testing.assert_allclose(got[0, 0], 1 / np.std(returns), rtol=1e-6)


def test_disabled_normalization_changes_nothing(make, device):
    normalizer = make(**OFF)
    fragment = place(device, make_fragment([[1e9, 2.0]], obs=1e9))
    normalizer.update(fragment)
    assert normalizer.obs_scale is None
    assert normalizer.reward(fragment.reward) is fragment.reward
    clipping = make(**{**OFF, "clip_reward": 1.0})
    clipping.update(fragment)
    np.testing.assert_array_equal(clipping.reward(fragment.reward), [[1.0, 1.0]])


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_state_is_restored_from_a_checkpoint(normalize_obs, make, device):
    options = {**OFF, "normalize_reward": True, "normalize_obs": normalize_obs}
    first, second = (make(**options) for _ in range(2))
    rng = np.random.default_rng(0)
    parts = [
        place(
            device, make_fragment(rng.standard_normal((5, 2)), obs=rng.standard_normal((5, 2, 2)))
        )
        for _ in range(3)
    ]
    first.update(parts[0])
    snapshot = first.array_snapshot()
    first.update(parts[1])  # not in the snapshot
    second.load(snapshot())
    second.update(parts[1])
    for normalizer in (first, second):
        normalizer.restart([1])
        normalizer.update(parts[2])
    for name, array in first.to_arrays().items():
        np.testing.assert_array_equal(array, second.to_arrays()[name], name)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("obs.mean", np.zeros(1)),  # would be broadcast
        ("obs.mean", np.zeros((2, 2))),
        ("obs.mean", np.array([0.0, np.nan])),
        ("obs.var", np.array([1.0, -1.0])),
        ("obs.count", np.array(-5)),
        ("returns.var", np.array(np.inf)),
        ("return", np.zeros(3)),
    ],
)
def test_statistics_that_do_not_fit_are_refused(make, device, name, array):
    arrays = {**make(**OFF).to_arrays(), f"normalizer.{name}": array}
    with pytest.raises(
        CheckpointError, match=f"statistics `normalizer.{name.split('.')[0]}` can't"
    ):
        make(**OFF).load(arrays)


@pytest.mark.parametrize("bound", [1e308, 10**30, 10**40])
def test_bounds_beyond_float32_are_ignored_without_a_warning(bound):
    normalizer = Normalizer((2,), 2, **{**OFF, "clip_reward": bound})
    scale = ObsScale(np.zeros(2, np.float32), np.ones(2, np.float32), as_clip(bound))
    rows = np.array([[-3e38, 5.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped = normalizer.reward(rows), scale.apply(rows)
    expected = np.array([[-min(3e38, float(bound)), 5.0]])
    for got in clipped:
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_restarted_environments_begin_a_new_sum(make, device):
    normalizer = make(**{**OFF, "normalize_reward": True})
    normalizer.update(place(device, make_fragment([[4.0, 8.0]])))
    normalizer.restart([0])
    normalizer.update(place(device, make_fragment([[1.0, 1.0]])))
    spread = np.std([4.0, 8.0, 1.0, 5.0])
    got = normalizer.reward(place(device, np.float32([[1.0, 0.0]])))
    np.testing.assert_allclose(np.asarray(got), [[1.0 / spread, 0.0]], rtol=1e-6)


def test_arrays_for_checkpoints_are_alike():
    arrays, tensors = (
        Normalizer((2,), 3, device=device, **OFF).to_arrays() for device in (None, CPU)
    )
    assert {name: (x.shape, x.dtype) for name, x in arrays.items()} == {
        name: (x.shape, x.dtype) for name, x in tensors.items()
    }
