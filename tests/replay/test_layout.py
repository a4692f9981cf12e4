"""Storage of fields: memory use, accepted values and batches without copies."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import hotloop
from hotloop.errors import ConfigError, ReplayError, ShapeError, SpaceError
from hotloop.replay import Batch, Prioritized, Proportional, RankBased, ReplayBuffer, Uniform
from tests.envs.toy import SpaceEnv, numbered
from tests.reference import replay as reference

FLAGS: dict[str, Any] = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
CHEETAH: dict[str, Any] = {
    "obs": ((17,), np.float32),
    "action": ((6,), np.float32),
    "reward": ((), np.float32),
    "next_obs": ((17,), np.float32),
    **FLAGS,
}
CHEETAH_BYTES = 17 * 4 + 6 * 4 + 4 + 2  # 98 bytes per transition without next_obs
VECTOR: dict[str, Any] = {"x": ((3,), np.float32)}


def steps(count: int, *, length: int, obs_shape: tuple[int, ...] = (17,)) -> dict[str, np.ndarray]:
    """Return one environment's transitions, in episodes of `length` steps."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((count + 1, *obs_shape), np.float32)
    next_obs = obs[1:].copy()
    last = np.arange(1, count + 1) % length == 0
    next_obs[last] += 1.0  # the final observation differs from the next episode's first one
    return {
        "obs": obs[:-1],
        "action": rng.standard_normal((count, 6), np.float32),
        "reward": rng.standard_normal(count, np.float32),
        "next_obs": next_obs,
        "terminated": last,
        "truncated": np.zeros(count, np.bool_),
    }


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of dictionaries and tuples under dotted names."""
    leaves = {}
    parts = enumerate(values) if isinstance(values, tuple) else values.items()
    for key, value in parts:
        name = f"{prefix}.{key}" if prefix else str(key)
        leaves.update(flat(value, name) if isinstance(value, (dict, tuple)) else {name: value})
    return leaves


def assert_same_entries(buffer: ReplayBuffer, twin: reference.Replay) -> None:
    """Compare every byte of every live entry."""
    assert twin.numbers == list(range(buffer.num_added - len(buffer), buffer.num_added))
    actual = flat(vars(buffer.get(twin.numbers)))
    for name in twin.entries[twin.numbers[0]].fields:
        column = [twin.entries[number].fields[name] for number in twin.numbers]
        expected = np.stack(column).astype(actual[name].dtype)
        assert actual[name].shape == expected.shape, name
        assert actual[name].tobytes() == expected.tobytes(), name


# Memory.


def test_sharing_stores_observations_once():
    capacity = 100_000
    buffer = ReplayBuffer(capacity, CHEETAH, share_next_obs=True)
    for _ in range(2):  # the second time overwrites the first
        buffer.extend(**steps(capacity, length=1000))
        assert buffer.memory()["total"] <= 1.10 * CHEETAH_BYTES * capacity
    single = ReplayBuffer(capacity, CHEETAH)
    assert single.memory()["total"] <= 1.02 * (CHEETAH_BYTES + 17 * 4) * capacity


def test_memory_of_final_observations_grows_on_demand():
    capacity = 10_000
    buffer = ReplayBuffer(capacity, CHEETAH, share_next_obs=True)
    before = buffer.memory()
    columns = steps(capacity, length=1)  # every observation is a final one
    buffer.extend(**columns)
    after = buffer.memory()
    assert before["finals"] <= 0.02 * 17 * 4 * capacity
    assert 17 * 4 * capacity <= after["finals"] <= 1.6 * (17 * 4 + 4) * capacity
    assert after["rows"] == before["rows"]
    batch = buffer.get(np.arange(capacity))
    np.testing.assert_array_equal(batch.next_obs, columns["next_obs"])
    buffer.extend(**columns)  # their number does not exceed the entries
    assert buffer.memory()["finals"] == after["finals"]


@pytest.mark.parametrize("sampler", [Proportional(), Prioritized()])
def test_tree_takes_at_most_two_numbers_per_entry(sampler):
    buffer = ReplayBuffer(100_000, VECTOR, sampler=sampler)
    assert buffer.memory()["weights"] <= 16 * 100_000


def test_memory_is_reported_by_purpose():
    buffer = ReplayBuffer(100, CHEETAH, sampler=RankBased(), share_next_obs=True)
    memory = buffer.memory()
    assert memory.pop("total") == sum(memory.values())
    assert memory.keys() == {"rows", "finals", "apart", "weights", "heads", "work"}
    assert memory["apart"] == 0
    assert ReplayBuffer(100, VECTOR).memory()["weights"] == 0
    assert ReplayBuffer(100, VECTOR).memory()["rows"] == 12 * 100


class FrameStacks:
    """Stacks of the last four frames, with a new frame per step. A reset fills the stack with one.

    Args:
        length: number of steps per episode.
    """

    def __init__(self, length: int, shape: tuple[int, ...] = (84, 84), seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.length, self.shape = length, shape
        self.time = 0

    def frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, (1, *self.shape), np.uint8)

    def step(self) -> dict[str, Any]:
        if self.time % self.length == 0:
            self.stack = np.repeat(self.frame(), 4, axis=0)
        self.time += 1
        obs, self.stack = self.stack, np.concatenate([self.stack[1:], self.frame()])
        return {
            "obs": obs,
            "action": self.time % 6,
            "reward": 1.0,
            "next_obs": self.stack,
            "terminated": self.time % self.length == 0,
            "truncated": False,
        }


def make_stack_buffer(capacity: int, **options: Any) -> ReplayBuffer:
    obs = ((4, 84, 84), np.uint8)
    fields = {
        "obs": obs,
        "action": ((), np.int64),
        "reward": ((), np.float32),
        "next_obs": obs,
        **FLAGS,
    }
    options = {"share_next_obs": True, "frame_stacks": ("obs",)} | options
    return ReplayBuffer(capacity, fields, seed=0, **options)


@pytest.mark.parametrize("n_step", [1, 3])
def test_frames_of_stacks_are_stored_once(n_step):
    capacity, length = 400, 50
    buffer = make_stack_buffer(capacity, n_step=n_step)
    frames = FrameStacks(length)
    for _ in range(capacity):
        buffer.add(**frames.step())
    # One frame per step, and the first one of each episode.
    (pool,) = buffer._store.pools
    assert pool.num_used - pool.num_free == capacity + capacity // length
    room = 84 * 84 * capacity
    assert buffer.memory()["apart"] <= 1.25 * room  # separate stacks would take eight times as much
    assert buffer.memory()["total"] <= 1.27 * room
    for _ in range(2 * capacity + length // 2):  # in the middle of an episode
        buffer.add(**frames.step())
    # The oldest entry's stack needs three older frames, which may cross into its episode.
    assert pool.num_used - pool.num_free <= capacity + capacity // length + n_step + 4
    assert buffer.memory()["apart"] <= 1.25 * room


def test_interleaved_environments_store_frames_once():
    capacity, length, num_envs = 400, 50, 4
    buffer = make_stack_buffer(capacity, num_envs=num_envs)
    worlds = [FrameStacks(length, seed=seed) for seed in range(num_envs)]
    for _ in range(capacity // num_envs):
        rows = [world.step() for world in worlds]
        buffer.extend(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
    (pool,) = buffer._store.pools
    assert pool.num_used - pool.num_free == capacity + capacity // length


def test_single_images_are_shared_with_the_next_step():
    image = ((40, 40), np.uint8)
    buffer = ReplayBuffer(200, {"obs": image, "next_obs": image, **FLAGS}, share_next_obs=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (201, 40, 40), np.uint8)
    for time in range(200):
        ends = time % 20 == 19
        buffer.add(obs=images[time], next_obs=images[time + 1], terminated=ends, truncated=False)
    (pool,) = buffer._store.pools
    # The next episode's first image is stored again: the buffer does not know that it is equal.
    assert pool.num_used - pool.num_free <= 201 + 200 // 20
    np.testing.assert_array_equal(buffer.get(np.arange(200)).next_obs, images[1:])


# Fields.


def test_fields_may_be_dictionaries():
    fields = {
        "obs": {"pos": ((3,), np.float32), "deep": {"image": ((40, 40), np.uint8)}},
        "next_obs": {"pos": ((3,), np.float32), "deep": {"image": ((40, 40), np.uint8)}},
        "mask": ((), np.bool_),
    }
    for share_next_obs in (False, True):
        buffer = ReplayBuffer(10, fields, seed=0, share_next_obs=share_next_obs)
        pos = np.arange(15, dtype=np.float32).reshape(5, 3)
        image = np.arange(5 * 1600).reshape(5, 40, 40).astype(np.uint8)

        def make_obs(index: Any, pos: Any = pos, image: Any = image) -> dict[str, Any]:
            return {"pos": pos[index], "deep": {"image": image[index]}}

        buffer.add(obs=make_obs(0), next_obs=make_obs(1), mask=True)
        buffer.extend(
            obs=make_obs(slice(1, 4)), next_obs=make_obs(slice(2, 5)), mask=[False, True, False]
        )
        batch = buffer.get([3, 0, 2])
        np.testing.assert_array_equal(batch.obs["pos"], pos[[3, 0, 2]])
        np.testing.assert_array_equal(batch["obs"]["deep"]["image"], image[[3, 0, 2]])
        np.testing.assert_array_equal(batch.next_obs["pos"], pos[[4, 1, 3]])
        np.testing.assert_array_equal(batch.next_obs["deep"]["image"], image[[4, 1, 3]])
        np.testing.assert_array_equal(batch.mask, [False, True, True])
        assert batch.keys() == ["obs", "next_obs", "mask", "index"]
        assert torch.equal(batch.torch().obs["pos"], torch.from_numpy(batch.obs["pos"]))


def test_tuples_are_dictionaries_with_numbered_keys():
    fields = {"obs": {"0": ((2,), np.float32), "1": {"a": ((), np.int64)}}}
    buffer = ReplayBuffer(10, fields)
    buffer.add(obs=(np.ones(2, np.float32), {"a": 7}))
    buffer.extend(obs=(np.zeros((2, 2), np.float32), {"a": [8, 9]}))
    batch = buffer.get([0, 2])
    np.testing.assert_array_equal(batch.obs["0"], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(batch.obs["1"]["a"], [7, 9])


@pytest.mark.parametrize(
    "dtype", ["b", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 2), (700,)])
def test_all_dtypes(dtype, shape):
    buffer = ReplayBuffer(4, {"before": ((), np.uint8), "x": (shape, dtype)})
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2 if dtype == "?" else 256, (6, *shape, np.dtype(dtype).itemsize))
    values = bits.astype(np.uint8).reshape(6, -1).view(dtype).reshape(6, *shape)
    for number in range(3):
        buffer.add(before=number, x=values[number])
    buffer.extend(before=np.arange(3, 6, dtype=np.uint8), x=values[3:])
    batch = buffer.get([2, 3, 4, 5])
    assert batch.x.dtype == np.dtype(dtype)
    assert batch.x.tobytes() == values[2:].tobytes()
    np.testing.assert_array_equal(batch.before, [2, 3, 4, 5])


def test_values_are_converted_within_their_kind():
    fields = {"f": ((2,), np.float32), "i": ((), np.int32), "b": ((), np.bool_), "r": ((), "f4")}
    buffer = ReplayBuffer(8, fields)
    buffer.add(f=np.array([0.1, 2.0]), i=np.int64(3), b=np.bool_(True), r=np.float64(0.1))
    buffer.add(f=[1, 2], i=4, b=1, r=1)
    buffer.add(f=(0.5, 1), i=True, b=False, r=True)
    buffer.add(f=torch.tensor([3.0, 4.0]), i=torch.tensor(5), b=torch.tensor(True), r=np.int8(2))
    batch = buffer.get(np.arange(4))
    np.testing.assert_array_equal(batch.f, np.float32([[0.1, 2], [1, 2], [0.5, 1], [3, 4]]))
    np.testing.assert_array_equal(batch.i, [3, 4, 1, 5])
    np.testing.assert_array_equal(batch.b, [True, True, False, True])
    np.testing.assert_array_equal(batch.r, np.float32([0.1, 1, 1, 2]))


def test_unknown_and_missing_names_of_nested_fields():
    buffer = ReplayBuffer(4, {"reward": ((), "f4"), "obs": {"a": ((2,), "f4")}})
    with pytest.raises(ShapeError, match=r"field `obs\.a` is missing: a transition has `reward`"):
        buffer.add(reward=1.0)
    with pytest.raises(ShapeError, match=r"no field `obs\.b`.*`obs\.a`"):
        buffer.extend(reward=[1.0], obs={"a": np.zeros((1, 2)), "b": [1.0]})


# Environments.


def assert_plays_alike(env: gymnasium.Env, buffer: ReplayBuffer, count: int) -> reference.Replay:
    """Take random actions, add the steps to the buffer and a twin, and compare them."""
    twin = reference.Replay(buffer.capacity, Uniform())
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(count):
        action = env.action_space.sample()
        next_obs, *values, _ = env.step(action)
        names = ("obs", "action", "next_obs", "reward", "terminated", "truncated")
        step = dict(zip(names, (obs, action, next_obs, *values), strict=True))
        buffer.add(**step)
        twin.add({name: np.asarray(value) for name, value in flat(step).items()})
        obs = env.reset()[0] if values[1] or values[2] else next_obs
    assert_same_entries(buffer, twin)
    return twin


def field_types(buffer: ReplayBuffer) -> dict[str, tuple[tuple[int, ...], str]]:
    return {field.name: (field.shape, field.dtype.name) for field in buffer.fields}


@pytest.mark.parametrize(
    ("name", "obs", "action"),
    [
        ("CartPole-v1", ((4,), "float32"), ((), "int64")),
        ("Pendulum-v1", ((3,), "float32"), ((1,), "float32")),
    ],
)
def test_for_env_with_an_environment(name, obs, action):
    env = gymnasium.make(name)
    buffer = ReplayBuffer.for_env(env, 150, seed=0)
    assert field_types(buffer) == {
        "obs": obs,
        "action": action,
        "reward": ((), "float32"),
        "next_obs": obs,
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
    }
    assert buffer.settings["share_next_obs"]
    assert buffer.settings["num_envs"] == 1
    assert_plays_alike(env, buffer, 400)


PARTS = spaces.Dict(
    {
        "position": spaces.Box(-1, 1, (2, 3), np.float64),
        "gear": spaces.Discrete(4, start=1),
        "camera": spaces.Box(0, 255, (40, 40), np.uint8),
        "pair": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]))),
    }
)


def test_for_env_with_dictionary_observations():
    env = SpaceEnv(PARTS)
    buffer = ReplayBuffer.for_env(env, 20, seed=0)
    types = field_types(buffer)
    assert {name: field_type for name, field_type in types.items() if name.startswith("obs")} == {
        "obs.position": ((2, 3), "float32"),
        "obs.gear": ((), "int64"),
        "obs.camera": ((40, 40), "uint8"),
        "obs.pair.0": ((3,), "int8"),
        "obs.pair.1": ((2,), "int64"),
    }
    assert_plays_alike(env, buffer, 50)
    assert buffer.sample(5).obs["pair"]["1"].shape == (5, 2)


def test_for_env_with_tuple_observations():
    env = SpaceEnv(spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))))
    assert_plays_alike(env, ReplayBuffer.for_env(env, 20, seed=0), 50)


def test_for_env_with_frame_stacks():
    env = FrameStackObservation(gymnasium.make("CartPole-v1"), 4)
    buffer = ReplayBuffer.for_env(env, 150, seed=0)
    assert buffer.settings["frame_stacks"] == ["obs"]
    twin = assert_plays_alike(env, buffer, 400)
    (pool,) = buffer._store.pools
    episodes = sum(bool(entry.fields["terminated"]) for entry in twin.entries.values()) + 1
    assert pool.num_used - pool.num_free <= 150 + episodes + 3
    plain = ReplayBuffer.for_env(env, 150, share_next_obs=False)
    assert plain.settings["frame_stacks"] == []
    vectorized = ReplayBuffer.for_env(SyncVectorEnv([lambda: env] * 2), 50)
    assert vectorized.settings["frame_stacks"] == ["obs"]
    assert field_types(vectorized)["obs"] == ((4, 4), "float32")


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_for_env_with_a_vector_environment(mode):
    envs = SyncVectorEnv([numbered(number) for number in range(3)], autoreset_mode=mode)
    buffer = ReplayBuffer.for_env(envs, 50, seed=0, n_step=2, gamma=0.5)
    assert field_types(buffer)["obs"] == ((3,), "float32")
    assert field_types(buffer)["action"] == ((), "int64")
    assert buffer.settings["num_envs"] == 3
    twin = reference.Replay(50, Uniform(), num_envs=3, n_step=2, gamma=0.5)
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    obs, done = obs.copy(), np.zeros(3, bool)
    for _ in range(60):
        action = rng.integers(0, 3, 3)
        new_obs, reward, terminated, truncated, info = envs.step(action)
        next_obs = new_obs.copy()
        is_last = terminated | truncated
        if mode == AutoresetMode.SAME_STEP and is_last.any():
            for env in np.flatnonzero(is_last):
                next_obs[env] = info["final_obs"][env]
        valid = ~done if mode == AutoresetMode.NEXT_STEP else None
        columns = {
            "obs": obs,
            "action": action,
            "reward": reward.astype(np.float32),
            "next_obs": next_obs,
            "terminated": terminated,
            "truncated": truncated,
        }
        buffer.extend(valid=valid, **columns)
        rows = [{name: column[env] for name, column in columns.items()} for env in range(3)]
        twin.extend(rows, valid=None if valid is None else valid.tolist())
        obs, done = new_obs.copy(), is_last
    assert buffer.num_added > 100
    assert_same_entries(buffer, twin)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_reset_rows_of_vector_environments_are_left_out(tmp_path, num_steps):
    """The default mode needs no `valid`, for one step at a time or several."""
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    buffer = ReplayBuffer.for_env(envs, 500, seed=0)
    with_valid = ReplayBuffer.for_env(envs, 500, seed=0)
    with_env = ReplayBuffer.for_env(envs, 500, seed=0)
    assert buffer.settings["next_step_autoreset"]
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    is_last, rows, is_transition, num_resets = np.zeros(3, bool), [], [], 0
    for _ in range(100):
        action = rng.integers(0, 2, 3)
        new_obs, reward, terminated, truncated, _ = envs.step(action)
        row = (obs.copy(), action, reward.astype(np.float32), new_obs.copy())
        rows.append((*row, terminated, truncated))
        is_transition.append(~is_last)
        num_resets += is_last.sum()
        obs, is_last = new_obs, terminated | truncated
        if len(rows) == num_steps:
            names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
            columns = dict(zip(names, map(np.concatenate, zip(*rows, strict=True)), strict=True))
            buffer.extend(**columns)
            with_valid.extend(valid=np.concatenate(is_transition), **columns)
            with_env.extend(env=np.arange(3 * num_steps) % 3, **columns)
            rows, is_transition = [], []
    assert num_resets > 5
    assert len(buffer) == 300 - num_resets
    for other in (with_valid, with_env):
        assert len(other) == len(buffer)
        batch, expected = (replay.get(np.arange(len(buffer))) for replay in (buffer, other))
        for name in ("obs", "next_obs", "action", "reward", "terminated"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
        assert not (batch.obs[batch.terminated] == batch.next_obs[batch.terminated]).all(1).any()
    buffer.save(tmp_path / "kept")
    assert ReplayBuffer.load(tmp_path / "kept").settings == buffer.settings


def test_refused_batches_do_not_change_reset_tracking():
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    buffer = ReplayBuffer.for_env(envs, 10)

    def columns(terminated):
        return {
            "obs": np.zeros((2, 4), np.float32),
            "action": np.zeros(2, np.int64),
            "reward": np.zeros(2, np.float32),
            "next_obs": np.ones((2, 4), np.float32),
            "terminated": np.array(terminated),
            "truncated": np.zeros(2, np.bool_),
        }

    with pytest.raises(ShapeError):
        buffer.extend(**{**columns([True, True]), "obs": np.zeros((2, 3), np.float32)})
    buffer.extend(**columns([True, False]))
    assert len(buffer) == 2
    for wrong in (np.zeros((2, 1), np.bool_), np.zeros(3, np.bool_), [[1], [1, 2]]):
        with pytest.raises(ShapeError):
            buffer.extend(**{**columns([False, False]), "truncated": wrong})
    with pytest.raises(ReplayError):
        buffer.extend(env=[0, 2], **columns([False, False]))
    buffer.extend(**columns([False, False]))
    assert len(buffer) == 3
    buffer.extend(**columns([True, True]))
    buffer.cut(1)  # starts an episode without a reset
    buffer.extend(**columns([False, False]))
    assert len(buffer) == 6
    with pytest.raises(ConfigError, match="`next_step_autoreset` needs a field `terminated`"):
        ReplayBuffer(10, {"obs": ((), "f4")}, next_step_autoreset=True)


def test_for_env_with_make_vec():
    envs = hotloop.make_vec(numbered(), 4)
    buffer = ReplayBuffer.for_env(envs, 60)
    assert field_types(buffer)["obs"] == ((3,), "float32")
    assert field_types(buffer)["action"] == ((), "int64")
    assert (buffer.settings["num_envs"], buffer.settings["next_step_autoreset"]) == (4, False)
    envs.close()


def test_for_env_options_take_precedence():
    env = gymnasium.make("CartPole-v1")
    buffer = ReplayBuffer.for_env(env, 10, num_envs=5, share_next_obs=False, sampler=RankBased())
    assert buffer.settings["num_envs"] == 5
    assert not buffer.settings["share_next_obs"]
    assert buffer.sampler == RankBased()


def test_for_env_refuses_unsupported_spaces():
    env = SpaceEnv(spaces.Dict({"text": spaces.Text(5)}))
    with pytest.raises(SpaceError, match=r"observation space Text.*declare `fields`"):
        ReplayBuffer.for_env(env, 10)
    with pytest.raises(ConfigError, match=r"must be a Gymnasium environment.*got int"):
        ReplayBuffer.for_env(3, 10)


# Batches.


def filled(count: int = 100, **options: Any) -> ReplayBuffer:
    """Return a buffer whose entry k is (k, k, k)."""
    options = {"sampler": Prioritized(), "seed": 0} | options
    buffer = ReplayBuffer(count, {"x": ((3,), np.float32), "n": ((), np.int64)}, **options)
    numbers = np.arange(count)
    buffer.extend(x=np.repeat(numbers[:, None], 3, axis=1).astype(np.float32), n=numbers)
    return buffer


def address(batch: Batch) -> int:
    return batch.x.ctypes.data


def test_tensors_share_the_batchs_memory():
    batch = filled().sample(8)
    tensors = batch.torch()
    assert (
        tensors.keys() == batch.keys() == ["x", "n", "index", "weight", "probability", "importance"]
    )
    for name in batch.keys():  # noqa: SIM118
        assert tensors[name].data_ptr() == batch[name].ctypes.data, name
        assert tuple(tensors[name].shape) == batch[name].shape
    assert tensors.x.dtype == torch.float32
    assert tensors.index.dtype == torch.int64
    batch.x[:] = 7.0
    assert (tensors.x == 7.0).all()


def test_batches_do_not_share_memory():
    """Arrays are contiguous, aligned, writable and disjoint from each other and the buffer."""
    buffer = filled()
    batch = buffer.sample(5)
    spans = sorted((array.ctypes.data, array.nbytes) for array in vars(batch).values())
    for (start, size), (next_start, _) in itertools.pairwise(spans):
        assert start + size <= next_start
    for array in vars(batch).values():
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
    batch.x[:] = -1.0
    batch.weight[:] = 1e9
    np.testing.assert_array_equal(buffer.get([3]).x, [[3, 3, 3]])
    assert (buffer.get(np.arange(100)).weight == 1.0).all()


def test_memory_of_released_batches_is_reused():
    buffer = filled()
    addresses = set()
    for _ in range(50):
        batch = buffer.sample(8)
        addresses.add(address(batch))
        del batch
    assert len(addresses) == 1
    # The usual loop holds one batch while the next one is drawn.
    for _ in range(50):
        batch = buffer.sample(8)
        addresses.add(address(batch))
    assert len(addresses) <= 2


HOLDERS = {
    "batch": lambda batch: batch,
    "array": lambda batch: batch.x,
    "slice": lambda batch: batch.x[2:4],
    "row": lambda batch: batch.x[3],
    "slice of a slice": lambda batch: batch.x[1:][1:, :2],
    "transposed": lambda batch: batch.x.T,
    "viewed as bytes": lambda batch: batch.x.view(np.uint8),
    "reshaped": lambda batch: batch.x.reshape(-1)[::2],
    "memoryview": lambda batch: memoryview(batch.x)[1:3],
    "tensors": lambda batch: batch.torch(),
    "tensor": lambda batch: batch.torch().x,
    "slice of a tensor": lambda batch: batch.torch().x[1:3],
    "tensor of a slice": lambda batch: torch.from_numpy(batch.x[1:3]),
    "tensor's array": lambda batch: torch.from_numpy(batch.x).numpy(),
    "tensor's view": lambda batch: torch.as_tensor(batch.x).view(-1).detach(),
    "dlpack": lambda batch: np.from_dlpack(batch.x),
    "another field": lambda batch: batch.probability[:1],
    "list": lambda batch: [{"deep": batch.index}],
    "closure": lambda batch: lambda: batch.x,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_of_a_batch_is_not_reused_while_it_is_referenced(holder):
    buffer = filled()
    draws = (lambda: buffer.sample(6), lambda: buffer.get([5, 4, 3, 2, 1, 0]))
    batch = buffer.sample(6)
    batch_address, x = address(batch), batch.x.copy()
    reference = HOLDERS[holder](batch)
    del batch
    for _ in range(6):
        new_batches = [draw() for draw in draws]
        assert batch_address not in map(address, new_batches)
        for new_batch in new_batches:
            new_batch.x[:] = -5.0
            new_batch.index[:] = -5
    if holder in ("array", "tensor", "dlpack"):
        np.testing.assert_array_equal(np.asarray(reference), x)
    if holder == "closure":
        np.testing.assert_array_equal(reference(), x)

    buffer = filled()
    batch = buffer.sample(6)
    batch_address = address(batch)
    reference = HOLDERS[holder](batch)
    del batch
    assert address(buffer.sample(6)) != batch_address
    del reference
    assert batch_address in map(address, [buffer.sample(6), buffer.sample(6)])


def test_few_released_batches_are_kept():
    buffer = filled(200)
    for sizes in ([16] * 40, range(1, 101)):
        batches = [buffer.sample(size) for size in sizes]
        arrays = [weakref.ref(batch.x) for batch in batches]
        del batches
        gc.collect()
        assert sum(array() is not None for array in arrays) <= 12


def test_batches_outlive_their_buffer():
    buffer = filled()
    batch = buffer.sample(8)
    tensor = batch.torch().x
    expected = batch.n.copy()
    del buffer, batch
    gc.collect()
    np.testing.assert_array_equal(tensor.numpy()[:, 0], expected)


def test_added_values_are_copied():
    buffer = ReplayBuffer(4, {"x": ((2,), np.float32), "image": ((2000,), np.uint8)})
    x, image = np.ones(2, np.float32), np.ones(2000, np.uint8)
    buffer.add(x=x, image=image)
    buffer.extend(x=x[None], image=image[None])
    x[:], image[:] = 5, 5
    batch = buffer.get([0, 1])
    assert (batch.x == 1).all()
    assert (batch.image == 1).all()


def test_batch_keys_repr_and_errors():
    batch = filled().sample(3)
    assert len(batch) == 3
    assert list(batch) == batch.keys()
    assert batch["x"] is batch.x
    assert repr(batch) == "Batch(3 × x, n, index, weight, probability, importance)"
    with pytest.raises(AttributeError, match="no `reward`: it has x, n, index"):
        _ = batch.reward
    with pytest.raises(KeyError, match="no `reward`: a batch has x, n"):
        _ = batch["reward"]
    assert filled(sampler=Uniform()).sample(3).keys() == ["x", "n", "index"]


# Batches drawn into the memory of an earlier one.


def arrays_of(batch: Batch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch under dotted names."""
    return flat(vars(batch))


def make_image_buffer(sampler: Any, n_step: int) -> ReplayBuffer:
    """Return a half-full buffer with a dictionary, large images and shared successors."""
    obs = {"where": ((2,), np.float32), "image": ((40, 40), np.uint8)}
    fields = {"obs": obs, "next_obs": obs, "reward": ((), np.float32), **FLAGS}
    buffer = ReplayBuffer(
        300, fields, sampler=sampler, n_step=n_step, share_next_obs=True, num_envs=2, seed=4
    )
    add_images(buffer, 0)
    return buffer


def add_images(buffer: ReplayBuffer, seed: int) -> None:
    """Add sixty transitions of two environments."""
    rng = np.random.default_rng(seed)
    where = rng.standard_normal((32, 2, 2)).astype(np.float32)
    image = rng.integers(0, 256, (32, 2, 40, 40), np.uint8)
    buffer.extend(
        obs={"where": where[:-2].reshape(60, 2), "image": image[:-2].reshape(60, 40, 40)},
        next_obs={"where": where[2:].reshape(60, 2), "image": image[2:].reshape(60, 40, 40)},
        reward=rng.standard_normal(60).astype(np.float32),
        terminated=rng.random(60) < 0.1,
        truncated=rng.random(60) < 0.1,
        **({"weight": rng.random(60)} if isinstance(buffer.sampler, Proportional) else {}),
    )


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    "sampler",
    [
        Uniform(),
        Uniform(replacement=False),
        Proportional(replacement=False),
        Prioritized(beta=0.4, beta_samples=10),
        RankBased(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_batches_drawn_into_earlier_ones_are_the_same(sampler, n_step):
    """The values equal those of a new batch, in the existing arrays and tensors."""
    buffer, twin = make_image_buffer(sampler, n_step), make_image_buffer(sampler, n_step)
    out = buffer.sample(16)
    arrays, tensors = arrays_of(out), tensors_of(out)
    addresses = {name: array.ctypes.data for name, array in arrays.items()}
    assert {name: tensor.data_ptr() for name, tensor in tensors.items()} == addresses
    assert ("discount" in arrays) is (n_step == 3)
    assert {"obs.where", "obs.image", "next_obs.image", "index"} <= arrays.keys()
    twin.sample(16)
    numbers = set()
    for k in range(1, 30):
        if k % 5 == 0:  # beyond the ring's end, overwriting drawn entries
            add_images(buffer, k)
            add_images(twin, k)
        if isinstance(sampler, (Prioritized, RankBased)):
            for replay in (buffer, twin):
                replay.update_weights(
                    np.arange(buffer.num_added - 30, buffer.num_added), np.arange(30.0)
                )
        assert buffer.sample(16, out=out) is out
        expected = arrays_of(twin.sample(16))
        actual = arrays_of(out)
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array, name)
            np.testing.assert_array_equal(tensors[name].numpy(), array, name)
            assert actual[name] is arrays[name]
            assert actual[name].ctypes.data == addresses[name]
        numbers.update(out.index.tolist())
    assert max(numbers) > 300
    assert buffer.num_samples == twin.num_samples == 30
    assert buffer.counters == twin.counters
    # Other batches are not changed.
    batch = buffer.sample(16)
    before = {name: array.copy() for name, array in arrays_of(batch).items()}
    buffer.sample(16, out=out)
    for name, array in arrays_of(batch).items():
        np.testing.assert_array_equal(array, before[name], name)
        assert array.ctypes.data != addresses[name]


def tensors_of(batch: Batch) -> dict[str, Any]:
    """Return the tensors of a batch under dotted names."""
    return flat({name: batch.torch()[name] for name in batch.keys()})  # noqa: SIM118


def test_batches_of_get_may_be_drawn_into():
    buffer, twin = filled(), filled()
    out = buffer.get(np.arange(6))
    assert np.isnan(out.importance).all()
    buffer.sample(6, out=out)
    expected = twin.sample(6)
    for name in expected:
        np.testing.assert_array_equal(out[name], expected[name])


def test_out_must_be_a_batch_of_this_size_and_buffer():
    buffer = filled()
    out = buffer.sample(8)
    before = {name: array.copy() for name, array in vars(out).items()}
    state = buffer.num_samples
    twin = filled()
    message = r"a batch of {} from this buffer, got Batch\({} × x, n.*\): draw the first one"
    for size, batch, batch_size in (
        (7, out, 8),
        (9, out, 8),
        (8, filled().sample(8), 8),  # of another, equal buffer
        (8, out.torch(), 8),
        (0, out, 8),
    ):
        with pytest.raises(ReplayError, match=message.format(size, batch_size)):
            buffer.sample(size, out=batch)
    for name, array in before.items():
        np.testing.assert_array_equal(out[name], array)
    assert buffer.num_samples == state
    twin.sample(8)
    np.testing.assert_array_equal(buffer.sample(8, out=out).index, twin.sample(8).index)


def test_failed_draws_do_not_change_out(tmp_path):
    buffer = filled(20, sampler=Uniform(replacement=False))
    empty = ReplayBuffer(20, declared_fields(buffer), sampler=Uniform(replacement=False), seed=0)
    empty.save(tmp_path / "replay")
    out = buffer.sample(8)
    index = out.index.copy()
    buffer.restore(tmp_path / "replay")
    with pytest.raises(ReplayError, match="the buffer is empty"):
        buffer.sample(8, out=out)
    np.testing.assert_array_equal(out.index, index)


def declared_fields(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return a buffer's fields as they were declared."""
    return {field.name: (field.shape, field.dtype) for field in buffer.fields}


@pytest.mark.parametrize("sampler", [Uniform(replacement=False), Prioritized(), RankBased()])
def test_large_batches_are_drawn_after_restoring(tmp_path, sampler):
    """The restored buffer allocates work space for them."""
    buffer = filled(5000, sampler=sampler)
    buffer.save(tmp_path / "replay")
    out = buffer.sample(4500)
    twin = ReplayBuffer.load(tmp_path / "replay")
    buffer.restore(tmp_path / "replay")
    buffer.sample(4500, out=out)
    np.testing.assert_array_equal(out.index, twin.sample(4500).index)
    np.testing.assert_array_equal(out.n, out.index)


# Files.
