"""The replay on a device: the host's transitions under the host's numbers, in tensors."""

import copy
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError, ReplayError, ShapeError
from hotloop.replay import (
    DeviceReplay,
    Prioritized,
    Proportional,
    RankBased,
    ReplayBuffer,
    Uniform,
    device_buffer,
)
from hotloop.replay.storage import device, device_frames
from tests.reference.replay import Replay as Reference

NAMES = ("obs", "action", "reward", "next_obs")
MAKES = {
    "numbers": (((3,), np.float32), ((2,), np.float32), ()),
    "categories": (((3,), np.float32), ((), np.int64), ()),
    "bytes": (((5,), np.uint8), ((), np.int64), ()),
    "stacks": (((4, 6, 5), np.uint8), ((), np.int64), ("obs",)),
    "images": (((24, 16, 3), np.uint8), ((), np.int64), ()),
}


def fields_of(make):
    obs, action, _ = MAKES[make]
    flag = ((), np.bool_)
    return {
        "obs": obs,
        "action": action,
        "reward": ((), np.float32),
        "next_obs": obs,
        "terminated": flag,
        "truncated": flag,
    }


class World:
    """Steps of N environments whose episodes have random lengths, time-major and flat."""

    def __init__(self, make, num_envs, seed, end=0.2):
        self.fields, self.stacks = fields_of(make), MAKES[make][2]
        self.rng, self.num_envs, self.end = np.random.default_rng(seed), num_envs, end
        self.obs = [self._first() for _ in range(num_envs)]

    def _some(self, shape, dtype):
        if np.dtype(dtype).kind == "f":
            return self.rng.normal(size=shape).astype(dtype)
        return self.rng.integers(0, 200, shape).astype(dtype)

    def _first(self):
        shape, dtype = self.fields["obs"]
        if self.stacks:
            return np.repeat(self._some((1, *shape[1:]), dtype), shape[0], 0)
        return self._some(shape, dtype)

    def _after(self, obs):
        shape, dtype = self.fields["obs"]
        if self.stacks:
            return np.concatenate([obs[1:], self._some((1, *shape[1:]), dtype)])
        return self._some(shape, dtype)

    def steps(self, count):
        rows = []
        for _, env in itertools.product(range(count), range(self.num_envs)):
            obs, next_obs = self.obs[env], self._after(self.obs[env])
            terminated, truncated = self.rng.random(2) < self.end / 2
            action = self._some(*self.fields["action"])
            reward = np.float32(self.rng.normal())
            rows.append((obs, action, reward, next_obs, terminated, truncated))
            self.obs[env] = self._first() if terminated or truncated else next_obs
        columns = zip(*rows, strict=True)
        return {
            name: np.array(column, dtype)
            for (name, (_, dtype)), column in zip(self.fields.items(), columns, strict=True)
        }


def pair(make, capacity=50, **options):
    """A buffer on the host and one on a device."""
    stacks = MAKES[make][2]
    host = ReplayBuffer(
        capacity, fields_of(make), share_next_obs=True, frame_stacks=stacks, **options
    )
    return host, DeviceReplay(capacity, fields_of(make), frame_stacks=stacks, **options)


def live(host):
    return np.arange(host.num_added - len(host), host.num_added)


def rows_on(replay, number):
    """Transitions by the way that a launch takes."""
    chosen = torch.from_numpy(np.asarray(number))
    rows = device.rows_of(replay.stored, chosen, replay.obs_shape)
    return {name: getattr(rows, name).numpy() for name in rows._fields}


def assert_same(host, replay):
    assert (len(replay), replay.num_added) == (len(host), host.num_added)
    number = live(host)
    if not len(number):
        return
    batch, rows, all_of_it = host.get(number), rows_on(replay, number), replay.get(number)
    for name in NAMES:
        np.testing.assert_array_equal(rows[name], batch[name], name)
        assert rows[name].dtype == batch[name].dtype
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(all_of_it[name], batch[name], name)
    want = batch.discount if "discount" in batch.keys() else 1 - batch.terminated.astype("f")  # noqa: SIM118
    np.testing.assert_array_equal(rows["discount"], want)


@pytest.mark.parametrize("make", list(MAKES))
@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (3, 1), (1, 3), (2, 4)])
def test_the_host_s_transitions(make, num_envs, n_step):
    host, replay = pair(make, num_envs=num_envs, n_step=n_step, gamma=0.9, seed=0)
    world, rng = World(make, num_envs, seed=num_envs + n_step), np.random.default_rng(0)
    for count in (1, 2, 7, 1, 30, 3, 20):
        steps = world.steps(count)
        host.extend(**steps)
        replay.extend(**steps)
        assert_same(host, replay)
        if rng.random() < 0.4:
            env = None if rng.random() < 0.3 else int(rng.integers(num_envs))
            host.cut(env)
            replay.cut(env)
            assert_same(host, replay)
