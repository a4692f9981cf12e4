"""One thread writes while another one draws, updates weights and saves: transitions stay whole."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

from hotloop.errors import HotloopError
from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer, Uniform
from hotloop.replay.native.entry_points import rebuild_weights
from hotloop.replay.native.handle import KIND_TREE

GAMMA, EPISODE = 0.5, 7
PER_ENV = 10_000_000


def make_obs(counts, shape, dtype):
    """Return observations with their count in every element, all different."""
    counts = np.asarray(counts, np.int64)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize // 8
    values = counts[..., None] * 1000 + np.arange(size) % 997
    return np.ascontiguousarray(values).view(dtype).reshape(*counts.shape, *shape)


def next_count(counts):
    """Return the count of the next observation, which sometimes is not the next step's."""
    counts = np.asarray(counts, np.int64)
    return np.where(counts % 5 == 0, -counts - 1, counts + 1)


class Writer:
    """Environments whose steps are determined by their count."""

    def __init__(self, buffer, obs):
        self.buffer, self.obs = buffer, obs
        self.num_envs = buffer.settings["num_envs"]
        self.takes_weight = isinstance(buffer.sampler, Proportional)
        self.steps = 0  # per environment

    def transitions(self, counts):
        counts = np.asarray(counts, np.int64)
        weight = {"weight": 1.0 + counts % 11} if self.takes_weight else {}
        return {
            "obs": make_obs(counts, *self.obs),
            "next_obs": make_obs(next_count(counts), *self.obs),
            "action": 3 * counts + 1,
            "reward": (counts % 1000).astype(np.float32),
            "terminated": counts % EPISODE == EPISODE - 1,
            **weight,
        }

    def add(self):
        for env in range(self.num_envs):
            values = self.transitions(env * PER_ENV + self.steps)
            self.buffer.add(env=env, **{name: value[()] for name, value in values.items()})
        self.steps += 1

    def extend(self, length):
        steps = self.steps + np.arange(length)[:, None]
        counts = (steps + np.arange(self.num_envs) * PER_ENV).ravel()
        self.buffer.extend(**self.transitions(counts))
        self.steps += length

    def write(self, number):
        """Write steps that depend only on `number`."""
        if number % 3:
            self.add()
        else:
            self.extend(1 + number % 40)


def assert_whole(batch, buffer, obs):
    """Check that all fields of each transition follow from its count."""
    counts = (batch.action - 1) // 3
    np.testing.assert_array_equal(batch.action, 3 * counts + 1)
    np.testing.assert_array_equal(batch.obs, make_obs(counts, *obs))
    n_step = buffer.settings["n_step"]
    if n_step == 1:
        np.testing.assert_array_equal(batch.next_obs, make_obs(next_count(counts), *obs))
        np.testing.assert_array_equal(batch.reward, counts % 1000)
        np.testing.assert_array_equal(batch.terminated, counts % EPISODE == EPISODE - 1)
        return
    length = np.minimum(n_step, EPISODE - counts % EPISODE)
    last = counts + length - 1
    reward = np.zeros(len(counts))
    for step in range(n_step - 1, -1, -1):
        reward = np.where(step < length, (counts + step) % 1000 + GAMMA * reward, reward)
    is_last = last % EPISODE == EPISODE - 1
    np.testing.assert_array_equal(batch.next_obs, make_obs(next_count(last), *obs))
    np.testing.assert_array_equal(batch.reward, reward.astype(np.float32))
    np.testing.assert_array_equal(batch.terminated, is_last)
    np.testing.assert_array_equal(batch.discount, np.where(is_last, 0.0, GAMMA**length))


class Reader:
    """Draws, weight updates, lookups and saves, all checked."""

    def __init__(self, buffer, obs, path):
        self.buffer, self.obs, self.path = buffer, obs, path
        self.rng = np.random.default_rng(1)
        self.held = []
        self.num_batches = self.num_saved = self.num_stale = 0

    def read(self, number):
        buffer = self.buffer
        if len(buffer) < 64:
            return
        batch = buffer.sample(int(self.rng.choice([8, 32, 64])))
        assert_whole(batch, buffer, self.obs)
        assert (batch.index >= 0).all()
        assert (batch.index < buffer.num_added).all()
        if not buffer.sampler.handle_settings().get("replacement"):
            assert len(np.unique(batch.index)) == len(batch)
        # Held batches never change.
        self.held.append((batch, batch.obs.tobytes(), batch.index.tobytes()))
        if len(self.held) > 5:
            old_batch, obs, index = self.held.pop(int(self.rng.integers(5)))
            assert old_batch.obs.tobytes() == obs
            assert old_batch.index.tobytes() == index
        if buffer.sampler.weighted:
            weights = self.rng.lognormal(0, 1, len(batch))
            time.sleep(0.0005 * (number % 3))
            applied = buffer.update_weights(batch.index, weights)
            assert 0 <= applied <= len(batch)
            self.num_stale += len(batch) - applied
        if number % 40 == 20:
            self.save()
        self.num_batches += 1

    def save(self):
        self.buffer.save(self.path)
        saved = ReplayBuffer.load(self.path)
        oldest = saved.num_added - len(saved)
        assert_whole(saved.get(np.arange(oldest, saved.num_added)), saved, self.obs)
        assert saved.num_added <= self.buffer.num_added
        self.num_saved += 1


BUFFERS = {
    "uniform": {
        "sampler": Uniform(replacement=False),
        "obs": ((5,), np.int64),
        "share_next_obs": True,
        "num_envs": 3,
    },
    "proportional, plain": {
        "sampler": Proportional(replacement=False),
        "obs": ((5,), np.int64),
    },
    "proportional, three steps": {
        "sampler": Proportional(),
        "obs": ((4,), np.int64),
        "n_step": 3,
        "num_envs": 2,
    },
    "prioritized, images": {
        "sampler": Prioritized(beta_samples=1000),
        "obs": ((40, 32), np.uint8),
        "share_next_obs": True,
    },
    "ranks, stacks": {
        "sampler": RankBased(),
        "obs": ((4, 8, 8), np.uint8),
        "frame_stacks": ("obs",),
        "n_step": 2,
        "num_envs": 2,
    },
}


def make_buffer(name):
    options = dict(BUFFERS[name])
    obs = options.pop("obs")
    fields = {
        "obs": obs,
        "next_obs": obs,
        "action": ((), np.int64),
        "reward": ((), np.float32),
        "terminated": ((), np.bool_),
    }
    return ReplayBuffer(1500, fields, seed=5, gamma=GAMMA, **options), obs


@pytest.fixture
def frequent_switches():
    """Let threads switch a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", list(BUFFERS), ids=lambda name: name.replace(" ", "-"))
def test_concurrent_writes_and_reads(tmp_path, name, frequent_switches):
    buffer, obs = make_buffer(name)
    writer, reader = Writer(buffer, obs), Reader(buffer, obs, tmp_path / "replay")
    memory_before = buffer.memory()
    for number in range(2):  # compile before the threads start
        writer.write(number)
    stop, failures, turns = threading.Event(), [], [0, 0]

    def run(index, function, number):
        try:
            while not stop.is_set():
                function(number)
                number += 1
        except BaseException as error:
            failures.append(error)
            stop.set()
        turns[index] = number

    threads = [
        threading.Thread(target=run, args=(0, writer.write, 2)),
        threading.Thread(target=run, args=(1, reader.read, 0)),
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(0.01):
        if buffer.num_added > 4000 and reader.num_saved > 2 and reader.num_batches > 150:
            break
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    assert reader.num_saved > 2
    assert reader.num_batches > 150
    if buffer.settings["share_next_obs"]:  # memory has grown meanwhile
        memory = buffer.memory()
        part = "apart" if "images" in name or "stacks" in name else "finals"
        assert memory[part] > memory_before[part]

    # Compare with the same steps in one thread.
    twin, _ = make_buffer(name)
    twin_writer = Writer(twin, obs)
    for number in range(turns[0]):
        twin_writer.write(number)
    assert twin_writer.steps == writer.steps
    assert (len(twin), twin.num_added) == (len(buffer), buffer.num_added)
    numbers = np.arange(buffer.num_added - len(buffer), buffer.num_added)
    batch, expected = buffer.get(numbers), twin.get(numbers)
    for field in (spec.path[0] for spec in buffer.fields):
        np.testing.assert_array_equal(batch[field], expected[field])
    if buffer.settings["n_step"] > 1:
        np.testing.assert_array_equal(batch.discount, expected.discount)
    assert_whole(batch, buffer, obs)
    assert buffer.num_samples == reader.num_batches
    assert buffer.counters["stale_updates"] == reader.num_stale

    # The trees and ranks of the weights are consistent.
    if buffer.sampler.weighted:
        twin.restore(tmp_path / "replay")
        buffer.save(tmp_path / "replay")
        twin.restore(tmp_path / "replay")
        for _ in range(20):
            sample, restored_sample = buffer.sample(100), twin.sample(100)
            np.testing.assert_array_equal(sample.index, restored_sample.index)
            np.testing.assert_array_equal(sample.probability, restored_sample.probability)
        if buffer._store.handle["kind"] == KIND_TREE:
            before = buffer._store.weights["leaves"].tobytes()
            rebuild_weights(buffer._store.address)
            assert buffer._store.weights["leaves"].tobytes() == before


def test_saving_does_not_block_a_writer_for_ever(tmp_path, frequent_switches):
    # Saving locks the buffer. Concurrent writes follow it, and none is lost.
    buffer, obs = make_buffer("uniform")
    writer = Writer(buffer, obs)
    done = threading.Event()

    def save():
        for _ in range(30):
            buffer.save(tmp_path / "replay")
        done.set()

    thread = threading.Thread(target=save)
    thread.start()
    number = 0
    while not done.is_set():
        writer.write(number)
        number += 1
    thread.join()
    assert buffer.num_added == 3 * writer.steps
    saved = ReplayBuffer.load(tmp_path / "replay")
    if len(saved):
        oldest = saved.num_added - len(saved)
        assert_whole(saved.get(np.arange(oldest, saved.num_added)), saved, obs)


def test_failures_release_the_lock():
    # An error in one thread must release the lock for the other.
    buffer, obs = make_buffer("proportional, plain")
    writer = Writer(buffer, obs)
    writer.extend(50)
    for call in (
        lambda: buffer.add(**{**writer.transitions(5), "weight": np.nan}),
        lambda: buffer.add(weight=1.0),
        lambda: buffer.extend(obs=3),
        lambda: buffer.sample(1000),
        lambda: buffer.sample(0),
        lambda: buffer.get([999]),
        lambda: buffer.update_weights([0], [np.nan]),
        lambda: buffer.cut(7),
        lambda: buffer.restore("not there"),
    ):
        with pytest.raises(HotloopError):
            call()
        thread = threading.Thread(target=writer.add, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
