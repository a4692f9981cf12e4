import gc
import os

import numpy as np
import pytest

from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError
from hotloop.policies import ObsScale, PolicySnapshot, actor_critic
from hotloop.rollouts.processes.shared_memory import Arena, SharedMemory, create_shared_memory
from tests.rollouts.processes.pools import make_network, num_descriptors, snapshot_of

SIZES = {"num_steps": 5, "num_workers": 3, "num_envs": 2}


@pytest.fixture
def network():
    envs = make_vec("CartPole-v1", 2)
    yield make_network(envs)
    envs.close()


@pytest.fixture
def memory(network):
    """Map the same memory twice, as the learner and a worker do."""
    fd, learner = create_shared_memory(network, **SIZES)
    worker = SharedMemory(fd, network, **SIZES)
    yield learner, worker
    os.close(fd)


def test_arrays_begin_at_cache_lines_and_do_not_overlap():
    arena = Arena(None)
    arrays = [
        arena.zeros(shape, dtype)
        for shape, dtype in (((3,), np.int64), ((2, 5), np.bool_), ((0, 4), np.float32), ((), "f8"))
    ]
    # 24, 10, 0 and 8 bytes take 1, 1, 0 and 1 lines of 64.
    assert arena.size_bytes == 192
    assert [array.shape for array in arrays] == [(3,), (2, 5), (0, 4), ()]


def all_arrays(memory):
    weights = memory.weights
    yield from (weights.words, weights._headers, weights._params, weights._scales, weights._clips)
    for worker in memory.workers:
        yield np.asarray(worker.words)
        yield from worker.versions
        yield from worker.episodes
        for slot in worker.slots:
            yield slot.head
            fragment = slot.fragment
            for name in ("obs", "action", "reward", "terminated", "truncated", "valid"):
                yield getattr(fragment, name)
            yield from (fragment.next_obs, fragment.value, fragment.next_value)
            yield from (fragment.log_prob, fragment.last_obs)


def test_all_processes_see_the_same_arrays(memory):
    learner, worker = memory
    assert learner.size_bytes == worker.size_bytes
    # Each array is filled with its number through one mapping and read through the other.
    for number, array in enumerate(all_arrays(learner), 1):
        array[...] = np.full(array.shape, number).astype(array.dtype)
    numbers = enumerate(all_arrays(worker), 1)
    for number, array in numbers:
        np.testing.assert_array_equal(array, np.full(array.shape, number).astype(array.dtype))


def test_rows_alternate_between_the_two_slots(memory):
    worker = memory[0].workers[1]
    assert [worker.slot_and_step(row) for row in (0, 4, 5, 9, 10, 23)] == [
        *((0, 0), (0, 4), (1, 0), (1, 4), (0, 0)),
        (0, 3),  # 23 = 4 · 5 + 3
    ]
    assert [w.slots[1].fragment.first_env for w in memory[0].workers] == [0, 2, 4]


def test_the_last_observation_of_a_slot_is_the_row_after_its_last(memory):
    learner, worker = memory
    fragment = learner.workers[2].slots[0].fragment
    assert (fragment.num_steps, fragment.num_envs) == (5, 2)
    fragment.step_arrays()[4].obs[...] = 7.0
    assert (worker.workers[2].slots[0].fragment.last_obs == 7.0).all()


def assert_same_snapshot(actual, expected):
    assert actual.version == expected.version
    assert actual.params.keys() == expected.params.keys()
    for name, array in expected.params.items():
        np.testing.assert_array_equal(actual.params[name], array, err_msg=name)
    assert (actual.obs_scale is None) == (expected.obs_scale is None)
    if expected.obs_scale is not None:
        np.testing.assert_array_equal(actual.obs_scale.mean, expected.obs_scale.mean)
        np.testing.assert_array_equal(actual.obs_scale.std, expected.obs_scale.std)
        assert actual.obs_scale.clip == expected.obs_scale.clip


def test_published_weights_are_read(memory, network):
    learner, worker = (mapping.weights for mapping in memory)
    scale = ObsScale(np.arange(4.0, dtype=np.float32), np.full(4, 2.0, np.float32), 10.0)
    published = [
        snapshot_of(network, 8),
        PolicySnapshot(9, network.initial_parameters(9), scale),
        snapshot_of(network, 12),
    ]
    for number, snapshot in enumerate(published, 1):
        learner.write(snapshot)
        assert worker.newest == number
        got_number, got = worker.read(number)
        assert got_number == number
        assert_same_snapshot(got, snapshot)
    # The second is still there, with its scale. The third has replaced the first.
    assert_same_snapshot(worker.read(2)[1], published[1])
    number, got = worker.read(1)
    assert number == 3
    assert_same_snapshot(got, published[2])


def test_weights_that_were_read_are_not_overwritten(memory, network):
    learner, worker = (mapping.weights for mapping in memory)
    learner.write(snapshot_of(network, 1))
    _, got = worker.read(1)
    for version in (2, 3, 4):
        learner.write(snapshot_of(network, version))
    assert_same_snapshot(got, snapshot_of(network, 1))


def test_weights_that_are_overwritten_while_they_are_read_are_read_again(memory, network):
    learner, worker = (mapping.weights for mapping in memory)

    class OverwrittenDuringRead:
        """Parameters in shared memory. The learner publishes twice during the first read."""

        def __init__(self, array):
            self.array = array
            self.num_reads = 0

        def __getitem__(self, index):
            self.num_reads += 1
            before = self.array[index].copy()
            if self.num_reads == 1:
                half = len(before) // 2
                learner.write(snapshot_of(network, 2))
                learner.write(snapshot_of(network, 3))
                before[half:] = self.array[index][half:]  # half of each version
            return before

    learner.write(snapshot_of(network, 1))
    worker._params = OverwrittenDuringRead(worker._params)
    number, got = worker.read(1)
    assert (number, worker._params.num_reads) == (3, 2)
    assert_same_snapshot(got, snapshot_of(network, 3))


def test_too_little_memory_is_reported_before_allocation(network, monkeypatch):
    size = SharedMemory(-1, network, **SIZES).size_bytes
    monkeypatch.setattr("hotloop.base.memory._SMALL_BYTES", 0)
    monkeypatch.setattr("hotloop.base.memory.available_memory", lambda: size - 1)
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    message = r"the fragments of 3 workers take at least .* KiB, and .* are free: use fewer workers"
    with pytest.raises(ConfigError, match=message):
        create_shared_memory(network, **SIZES)
    assert num_descriptors() == before
    monkeypatch.setattr("hotloop.base.memory.available_memory", lambda: size)
    fd, memory = create_shared_memory(network, **SIZES)
    assert (os.fstat(fd).st_size, memory.size_bytes) == (size, size)
    os.close(fd)


def test_a_network_that_is_too_large_is_reported(network, monkeypatch):
    monkeypatch.setattr("hotloop.base.memory._SMALL_BYTES", 0)
    monkeypatch.setattr("hotloop.base.memory.available_memory", lambda: 1)
    message = (
        r"fragments of 2 workers and the weights of the network, \d+ MiB of it, take at least .* "
        r"are free: use a smaller network \(`hidden_sizes`\)"
    )
    envs = make_vec(EnvSpec("CartPole-v1", seed=1), 1)
    large = actor_critic(envs, hidden_sizes=(2048, 2048))
    envs.close()
    with pytest.raises(ConfigError, match=message):
        create_shared_memory(large, num_steps=2, num_workers=2, num_envs=1)


def test_unknown_free_memory_is_not_refused(network, monkeypatch):
    monkeypatch.setattr("hotloop.base.memory.available_memory", lambda: None)
    fd, _ = create_shared_memory(network, **SIZES)
    os.close(fd)


def test_a_failed_allocation_is_an_error_and_leaves_no_descriptor(network, monkeypatch):
    def refuse(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    message = r"shared memory can't be allocated \(.*No space left.*\): use fewer"
    with pytest.raises(ConfigError, match=message):
        create_shared_memory(network, **SIZES)
    assert num_descriptors() == before


def test_the_memory_file_is_not_inheritable(network):
    fd, _ = create_shared_memory(network, **SIZES)
    assert not os.get_inheritable(fd)
    os.close(fd)
