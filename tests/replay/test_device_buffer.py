"""The replay on a device: the host's transitions under the host's numbers, in tensors."""

import itertools

import numpy as np
import pytest
import torch

from hotloop.replay import (
    DeviceReplay,
    Prioritized,
    Proportional,
    RankBased,
    ReplayBuffer,
    Uniform,
)
from hotloop.replay.storage import device
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


def test_windows_are_those_of_the_twin():
    """Against dictionaries of copies, with environments in any order and rows that are left out."""
    fields, rng = fields_of("numbers"), np.random.default_rng(1)
    replay = DeviceReplay(20, fields, num_envs=3, n_step=3, gamma=0.5)
    twin = Reference(20, Uniform(), num_envs=3, n_step=3, gamma=0.5)
    world = World("numbers", 3, seed=2)
    for _ in range(12):
        steps = world.steps(2)
        env, valid = rng.integers(0, 3, 6), rng.random(6) < 0.8
        replay.extend(**steps, env=env, valid=valid)
        each = [{name: array[row] for name, array in steps.items()} for row in range(6)]
        twin.extend(each, envs=env.tolist(), valid=valid.tolist())
        numbers = np.array(sorted(twin.entries), np.int64)
        assert (len(replay), replay.num_added) == (len(numbers), twin.num_added)
        if not len(numbers):
            continue
        rows = rows_on(replay, numbers)
        for name in (*NAMES, "discount"):
            want = [twin.entries[number].fields[name] for number in numbers]
            np.testing.assert_array_equal(rows[name], want, name)


# --- files ----------------------------------------------------------------------------------------


SAMPLERS = {
    "uniform": {},
    "distinct": {"sampler": Uniform(replacement=False)},
    "returns": {
        "sampler": Proportional(replacement=False),
        "weight_from": "episode_return",
    },
    "to_go": {"sampler": Proportional(), "weight_from": "return_to_go"},
    "prioritized": {"sampler": Prioritized(beta_samples=50)},
    "ranks": {"sampler": RankBased()},
}


@pytest.mark.parametrize("count", [0, 3, 9, 40])
@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("make", ["numbers", "stacks", "images"])
def test_files_go_both_ways(tmp_path, make, num_envs, n_step, count):
    options = {"num_envs": num_envs, "n_step": n_step, "seed": 3}
    host, replay = pair(make, **options)
    world = World(make, num_envs, seed=count)
    for step in range(2 if count else 0):
        steps = world.steps(count)
        host.extend(**steps)
        replay.extend(**steps)
        if step == 0:
            replay.cut(0)
            host.cut(0)
    replay.save(tmp_path / "from_device")
    host.save(tmp_path / "from_host")
    other_host, other = pair(make, **options)
    other_host.restore(tmp_path / "from_device")
    other.restore(tmp_path / "from_host")
    again = pair(make, **options)[1]
    again.restore(tmp_path / "from_device")
    for _ in range(8):
        for one in (other, again, replay):
            assert_same(host, one)
        assert_same(other_host, replay)
        steps = world.steps(4)
        for one in (host, other_host, replay, other, again):
            one.extend(**steps)
    if len(host) >= 8:  # draws of the host go on where the file says
        np.testing.assert_array_equal(other_host.sample(8).index, host.sample(8).index)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "uniform"])
def test_weights_go_both_ways(tmp_path, name, n_step):
    host, replay = pair("numbers", num_envs=2, n_step=n_step, seed=3, **SAMPLERS[name])
    world = World("numbers", 2, seed=1)
    changes = "priorities" if host.sampler.has_importance else None

    def step(*buffers):
        steps, priorities = world.steps(9), world.rng.random(8)
        for one in buffers:
            one.extend(**steps)
        for one in buffers:
            drawn = one.sample(8).index if isinstance(one, ReplayBuffer) else one.draw(1, 8).index
            if changes and isinstance(one, ReplayBuffer):
                one.update_weights(drawn, priorities)
            elif changes:
                one.update_weights(drawn, torch.from_numpy(priorities))
                one.settle()
            found.append(drawn.reshape(-1).copy())
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])
        found.clear()

    found = []
    for _ in range(9):
        step(host, replay)
    replay.save(tmp_path / "from_device")
    host.save(tmp_path / "from_host")
    other_host, other = pair("numbers", num_envs=2, n_step=n_step, seed=4, **SAMPLERS[name])
    other_host.restore(tmp_path / "from_device")
    other.restore(tmp_path / "from_host")
    for _ in range(9):
        step(host, replay, other_host, other)
        assert_same(host, other)
        assert_same(other_host, replay)
