"""The replay on a device stores the same transitions as the host's, in tensors."""

import itertools

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError, ReplayError
from hotloop.replay import (
    Prioritized,
    Proportional,
    RankBased,
    ReplayBuffer,
    Sequences,
    Uniform,
)
from hotloop.replay.device_buffer import DeviceReplay
from hotloop.replay.storage import device_memory, device_store, frame_ring
from tests.reference.replay import Replay as Reference

NAMES = ("obs", "action", "reward", "next_obs")
LAYOUTS = {
    "numbers": (((3,), np.float32), ((2,), np.float32), ()),
    "categories": (((3,), np.float32), ((), np.int64), ()),
    "bytes": (((5,), np.uint8), ((), np.int64), ()),
    "stacks": (((4, 6, 5), np.uint8), ((), np.int64), ("obs",)),
    "images": (((24, 16, 3), np.uint8), ((), np.int64), ()),
}


def fields_of(make):
    obs, action, _ = LAYOUTS[make]
    fields = {"obs": obs, "action": action, "reward": ((), np.float32), "next_obs": obs}
    return {**fields, "terminated": ((), np.bool_), "truncated": ((), np.bool_)}


class Episodes:
    """Steps of N environments with random episode lengths, time-major and flat."""

    def __init__(self, make, num_envs, seed, end=0.2):
        self.fields, self.stacks = fields_of(make), LAYOUTS[make][2]
        self.rng, self.num_envs, self.end = np.random.default_rng(seed), num_envs, end
        self.obs = [self._first() for _ in range(num_envs)]

    def _random(self, shape, dtype):
        if np.dtype(dtype).kind == "f":
            return self.rng.normal(size=shape).astype(dtype)
        return self.rng.integers(0, 200, shape).astype(dtype)

    def _first(self):
        shape, dtype = self.fields["obs"]
        if self.stacks:
            return np.repeat(self._random((1, *shape[1:]), dtype), shape[0], 0)
        return self._random(shape, dtype)

    def _successor(self, obs):
        shape, dtype = self.fields["obs"]
        if self.stacks:
            return np.concatenate([obs[1:], self._random((1, *shape[1:]), dtype)])
        return self._random(shape, dtype)

    def steps(self, count):
        rows = []
        for _, env in itertools.product(range(count), range(self.num_envs)):
            obs, next_obs = self.obs[env], self._successor(self.obs[env])
            terminated, truncated = self.rng.random(2) < self.end / 2
            action = self._random(*self.fields["action"])
            reward = np.float32(self.rng.normal())
            rows.append((obs, action, reward, next_obs, terminated, truncated))
            self.obs[env] = self._first() if terminated or truncated else next_obs
        columns = zip(*rows, strict=True)
        return {
            name: np.array(column, dtype)
            for (name, (_, dtype)), column in zip(self.fields.items(), columns, strict=True)
        }


class HostLikeReplay(DeviceReplay):
    """A device replay that draws like a host buffer."""

    def draw(self, count):
        """Return the numbers of the transitions of `count` batches, (count, B)."""
        on_host = self.prepare(count)
        self.send()
        device_store.store_new(self.stored)
        number = device_store.draw_numbers(self.stored, count).clone()
        if on_host is not None:
            np.testing.assert_array_equal(number.cpu().numpy(), on_host)
        return number


def pair(make, capacity=50, sizes=None, **options):
    """Return a host buffer and a device replay."""
    stacks = LAYOUTS[make][2]
    host = ReplayBuffer(
        capacity, fields_of(make), share_next_obs=True, frame_stacks=stacks, **options
    )
    options = {"batch_size": 8, **(sizes or {}), **options}
    return host, HostLikeReplay(capacity, fields_of(make), frame_stacks=stacks, **options)


def live(host):
    return np.arange(host.num_added - len(host), host.num_added)


def rows_on(replay, number):
    """Return transitions by the device's gather."""
    index = torch.from_numpy(np.asarray(number))
    return {name: tensor.numpy() for name, tensor in replay.gather(index).items()}


def assert_same(host, replay):
    assert (len(replay), replay.num_added) == (len(host), host.num_added)
    number = live(host)
    if not len(number):
        return
    batch, rows, fields = host.get(number), rows_on(replay, number), replay.get(number)
    for name in NAMES:
        np.testing.assert_array_equal(rows[name], batch[name], name)
        assert rows[name].dtype == batch[name].dtype
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(fields[name], batch[name], name)
    expected = batch.discount if "discount" in batch.keys() else 1 - batch.terminated.astype("f")  # noqa: SIM118
    np.testing.assert_array_equal(rows["discount"], expected)


@pytest.mark.parametrize("max_new", [1, 5, 64])
@pytest.mark.parametrize("make", list(LAYOUTS))
@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (3, 1), (1, 3), (2, 4)])
def test_transitions_match_the_hosts(make, num_envs, n_step, max_new):
    """The size of the inbox does not matter."""
    options = {"num_envs": num_envs, "n_step": n_step, "gamma": 0.9, "seed": 0}
    host, replay = pair(make, sizes={"max_new": max_new}, **options)
    world, rng = Episodes(make, num_envs, seed=num_envs + n_step), np.random.default_rng(0)
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


def with_masks(values, specs=None):
    """Return fields or steps whose observations have masks, a function of the numbers."""
    parts = {}
    for name in ("obs", "next_obs"):
        mask = ((3,), np.bool_)
        if specs is None:
            mask = values[name].reshape(len(values[name]), -1)[:, :3] > 0
        parts[name] = {"obs": values[name], "mask": mask}
    return {**values, **parts}


@pytest.mark.parametrize("make", ["numbers", "stacks", "images"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_masks_are_stored_and_saved_like_the_hosts(tmp_path, make, n_step):
    stacks = ("obs.obs",) if LAYOUTS[make][2] else ()
    options = {"num_envs": 2, "n_step": n_step, "frame_stacks": stacks, "seed": 0}
    fields = with_masks(fields_of(make), specs=True)
    host = ReplayBuffer(40, fields, share_next_obs=True, **options)
    replay, other = (HostLikeReplay(40, fields, batch_size=8, **options) for _ in range(2))
    episodes = Episodes(make, 2, seed=3)

    def check(replay):
        number = live(host)
        batch, rows = host.get(number), rows_on(replay, number)
        for name in ("obs", "next_obs"):
            np.testing.assert_array_equal(rows[name], batch[name]["obs"])
            np.testing.assert_array_equal(rows[name.replace("obs", "mask")], batch[name]["mask"])

    for count in (7, 25, 3):
        steps = with_masks(episodes.steps(count))
        host.extend(**steps)
        replay.extend(**steps)
        check(replay)
    assert rows_on(replay, live(host))["next_mask"].any(0).all()
    replay.save(tmp_path / "device")
    other.restore(tmp_path / "device")
    check(other)
    host.restore(tmp_path / "device")
    steps = with_masks(episodes.steps(6))  # complete the windows that were saved
    host.extend(**steps)
    other.extend(**steps)
    check(other)


def test_windows_match_the_reference():
    """Environments come in any order, and some rows are left out."""
    fields, rng = fields_of("numbers"), np.random.default_rng(1)
    replay = HostLikeReplay(20, fields, num_envs=3, n_step=3, gamma=0.5)
    twin = Reference(20, Uniform(), num_envs=3, n_step=3, gamma=0.5)
    world = Episodes("numbers", 3, seed=2)
    for _ in range(12):
        steps = world.steps(2)
        env, valid = rng.integers(0, 3, 6), rng.random(6) < 0.8
        replay.extend(**steps, env=env, valid=valid)
        rows_to_add = [{name: array[row] for name, array in steps.items()} for row in range(6)]
        twin.extend(rows_to_add, envs=env.tolist(), valid=valid.tolist())
        numbers = np.array(sorted(twin.entries), np.int64)
        assert (len(replay), replay.num_added) == (len(numbers), twin.num_added)
        if not len(numbers):
            continue
        rows = rows_on(replay, numbers)
        for name in (*NAMES, "discount"):
            expected = [twin.entries[number].fields[name] for number in numbers]
            np.testing.assert_array_equal(rows[name], expected, name)


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


@pytest.mark.parametrize("count", [0, 3, 40])
@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("make", ["numbers", "stacks", "images"])
def test_host_and_device_load_each_others_files(tmp_path, make, num_envs, n_step, count):
    options = {"num_envs": num_envs, "n_step": n_step, "seed": 3}
    host, replay = pair(make, **options)
    world = Episodes(make, num_envs, seed=count)
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
        for buffer in (other, again, replay):
            assert_same(host, buffer)
        assert_same(other_host, replay)
        steps = world.steps(4)
        for buffer in (host, other_host, replay, other, again):
            buffer.extend(**steps)
    if len(host) >= 8:  # draws of the host continue from the file
        np.testing.assert_array_equal(other_host.sample(8).index, host.sample(8).index)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "uniform"])
def test_host_and_device_load_each_others_weights(tmp_path, name, n_step):
    host, replay = pair("numbers", num_envs=2, n_step=n_step, seed=3, **SAMPLERS[name])
    world = Episodes("numbers", 2, seed=1)
    has_priorities = "priorities" if host.sampler.has_importance else None

    def step(*buffers):
        steps, priorities = world.steps(9), world.rng.random(8)
        for buffer in buffers:
            buffer.extend(**steps)
        for buffer in buffers:
            index = (
                buffer.sample(8).index
                if isinstance(buffer, ReplayBuffer)
                else buffer.draw(1).numpy()
            )
            if has_priorities and isinstance(buffer, ReplayBuffer):
                buffer.update_weights(index, priorities)
            elif has_priorities:
                buffer.update_weights(index, torch.from_numpy(priorities))
                buffer.settle()
            indices.append(index.reshape(-1).copy())
        for other_index in indices[1:]:
            np.testing.assert_array_equal(other_index, indices[0])
        indices.clear()

    indices = []
    for _ in range(9):
        step(host, replay)
    replay.save(tmp_path / "from_device")
    host.save(tmp_path / "from_host")
    other_host, other_index = pair("numbers", num_envs=2, n_step=n_step, seed=4, **SAMPLERS[name])
    other_host.restore(tmp_path / "from_device")
    other_index.restore(tmp_path / "from_host")
    for _ in range(9):
        step(host, replay, other_host, other_index)
        assert_same(host, other_index)
        assert_same(other_host, replay)


# --- frames ---------------------------------------------------------------------------------------


def test_frames_of_stacks_are_stored_once():
    """An episode of five steps has six frames: the first one and one per step."""
    replay = pair("stacks")[1]
    world = Episodes("stacks", 1, seed=0, end=0.0)
    replay.extend(**world.steps(5))
    assert replay.frames.num_frames == 6
    obs, _ = LAYOUTS["stacks"][:2]
    frame_bytes = int(np.prod(obs[0][1:]))
    size = device_memory.needed_bytes(50, fields_of("stacks"), 1, 1, ("obs",))
    # A row has 2 × 4 frame numbers, action, reward and discount. One row and one frame are spare.
    assert size == 51 * (2 * 4 * 4 + 8 + 4 + 4) + (replay.frames.size + 1) * frame_bytes
    assert replay.stored.rows.nbytes + replay.stored.frames.nbytes == size


def test_images_are_shared_with_the_next_step():
    replay = pair("images", num_envs=2)[1]
    replay.extend(**Episodes("images", 2, seed=0, end=0.0).steps(5))
    assert replay.frames.num_frames == 2 * 6


@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (2, 3)])
def test_transitions_without_frames_are_dropped(monkeypatch, tmp_path, num_envs, n_step):
    """Short episodes need more frames than fit, so the oldest transitions are dropped."""
    margin = 16 * num_envs * n_step
    monkeypatch.setattr(frame_ring, "ring_size", lambda *args: (60 + margin, margin))
    options = {"num_envs": num_envs, "n_step": n_step, "seed": 0}
    host, replay = pair("images", **options)
    world, sizes = Episodes("images", num_envs, seed=3, end=0.9), []
    for _ in range(120):
        steps = world.steps(1)
        host.extend(**steps)
        replay.extend(**steps)
        sizes.append(len(replay))
        number = live(host)[-len(replay) :] if len(replay) else []
        rows = rows_on(replay, np.array(number, np.int64))
        if len(number):
            batch = host.get(number)
            for name in NAMES:
                np.testing.assert_array_equal(rows[name], batch[name], name)
    assert len(host) == 50
    assert 20 <= sizes[-1] < 50
    numbers = torch.stack([replay.draw(1) for _ in range(250)])
    assert numbers.min() == host.num_added - sizes[-1]
    # In a file, the oldest whole transition replaces those before it.
    replay.save(tmp_path / "file")
    other = pair("images", **options)[0]
    other.restore(tmp_path / "file")
    assert len(other) == 50
    oldest_whole, all_numbers = host.num_added - sizes[-1], live(host)
    expected = host.get(np.maximum(all_numbers, oldest_whole))
    actual = other.get(all_numbers)
    for name in NAMES:
        np.testing.assert_array_equal(actual[name], expected[name], name)


def test_environment_that_steps_too_rarely_raises():
    replay = pair("images", num_envs=2, n_step=3)[1]
    replay.frames.margin = 20
    world = Episodes("images", 2, seed=3, end=0.0)
    replay.extend(**world.steps(2))
    single = Episodes("images", 1, seed=3, end=0.0)
    for _ in range(30):
        replay.extend(**single.steps(1), env=[0])
    with pytest.raises(ReplayError, match="environments must step about equally often"):
        replay.extend(**world.steps(1))


# --- draws ----------------------------------------------------------------------------------------


def test_uniform_numbers_cover_exactly_the_live_transitions():
    """Check the greatest number below 1, and sizes up to 2^31."""
    below_1 = 1 - 2.0**-53
    for size in (1, 2, 3, 1000, 2**24 + 1, 2**31 - 1, 2**31):
        counts = torch.tensor([5, size])
        uniform = torch.tensor([0.0, below_1, 0.5], dtype=torch.float64)
        assert device_store.uniform_numbers(counts, uniform).tolist() == [
            5,
            5 + size - 1,
            5 + size // 2,
        ]


def test_draws_are_uniform():
    sizes = {"batch_size": 200, "max_batches": 100}
    replay = pair("numbers", capacity=20, seed=0, sizes=sizes)[1]
    replay.extend(**Episodes("numbers", 1, seed=0).steps(33))
    numbers = replay.draw(100).numpy()
    values, counts = np.unique(numbers, return_counts=True)
    assert values.tolist() == list(range(13, 33))
    # 1,000 draws each, with a tolerance of 5 standard deviations of a binomial.
    assert (abs(counts - 1000) < 5 * np.sqrt(1000 * 0.95)).all()


def test_seed_determines_draws():
    """The number of batches per draw and the first number do not matter."""
    sizes = {"max_batches": 70}
    first, second, third, other = (
        pair("numbers", seed=seed, sizes=sizes)[1] for seed in (1, 1, 1, 2)
    )
    for replay in (first, second, third, other):
        replay.extend(**Episodes("numbers", 1, seed=0).steps(30))
    numbers = first.draw(70)
    assert torch.equal(numbers, torch.cat([second.draw(1) for _ in range(70)]))
    third.num_samples = 60
    assert torch.equal(numbers[60:], third.draw(10))
    assert not torch.equal(numbers, other.draw(70))


def test_priorities_are_written_a_round_later():
    replay = pair("numbers", sampler=Prioritized(), seed=0)[1]
    replay.extend(**Episodes("numbers", 1, seed=0).steps(4))
    before = replay.index.sample(4).probability.copy()
    index = np.array([[0, 1], [2, 3]])
    replay.update_weights(index, torch.tensor([[9.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(replay.index.sample(4).probability, before)
    replay.settle()
    assert (replay.index.sample(64).index == 0).mean() > 0.9


# --- bad input ------------------------------------------------------------------------------------


def test_missing_transitions_raise():
    replay = pair("numbers", capacity=5)[1]
    with pytest.raises(ReplayError, match="the buffer is empty: add transitions before"):
        replay.draw(1)
    replay.extend(**Episodes("numbers", 1, seed=0).steps(7))
    for number in (1, 7):
        with pytest.raises(ReplayError, match=f"no transition {number}: they go from 2 to 6"):
            replay.get([3, number])


def test_refused_reward_changes_nothing():
    replay = pair("numbers", **SAMPLERS["returns"])[1]
    steps = Episodes("numbers", 1, seed=0).steps(3)
    steps["reward"][1] = np.nan
    with pytest.raises(ReplayError, match="`reward` must be a finite number"):
        replay.extend(**steps)
    assert (replay.num_added, len(replay), replay.index.num_added) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_obs": ((4,), np.float32)}, "with `obs` and `next_obs` alike"),
        ({"memory": ((4,), np.float32)}, "got obs, .*, memory: keep other fields in a `Replay"),
        ({"reward": ((), np.float64)}, r"field `reward` must be \(\(\), np.float32\)"),
        ({"action": ((400,), "f4")}, "`action` may take 1,024 bytes of a transition, got 1,600"),
    ],
)
def test_unsupported_fields_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        HostLikeReplay(10, {**fields_of("numbers"), **change})


@pytest.mark.parametrize(
    ("make", "sampler", "message"),
    [
        ("images", Prioritized(), "a replay of images on the device draws uniformly, got"),
        ("numbers", Sequences(length=3), "single transitions, got Sequences: use a `Replay"),
        ("numbers", Proportional(), "needs `weight_from`: set it to 'episode_return'"),
    ],
)
def test_unsupported_samplers_are_refused(make, sampler, message):
    with pytest.raises(ConfigError, match=message):
        HostLikeReplay(10, fields_of(make), sampler=sampler)


def test_uniform_is_drawn_on_the_device():
    replay = HostLikeReplay(10, fields_of("images"), sampler=Uniform(), seed=0)
    assert replay.index is None


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(device_memory, "available_memory", lambda: 2**20)
    message = "takes 45 MiB, and 1.0 MiB are free: lower `buffer_size`, or keep it on the host"
    with pytest.raises(ConfigError, match=message):
        HostLikeReplay(10**6, fields_of("numbers"))


def test_file_with_other_settings_is_refused(tmp_path):
    replay, other = pair("numbers", capacity=5)[1], pair("numbers", capacity=6)[1]
    replay.extend(**Episodes("numbers", 1, seed=0).steps(4))
    other.extend(**Episodes("numbers", 1, seed=1).steps(3))
    replay.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match="is of a buffer with other settings"):
        other.restore(tmp_path / "file")
    assert len(other) == 3
    with pytest.raises(CheckpointError, match="there is no "):
        other.restore(tmp_path / "nothing")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("make", list(LAYOUTS))
def test_on_a_gpu(make):
    options = {"num_envs": 2, "n_step": 2, "seed": 0}
    host = pair(make, **options)[0]
    stacks = LAYOUTS[make][2]
    sizes = {"batch_size": 200, "max_batches": 100}
    options = {**options, **sizes, "frame_stacks": stacks}
    replay = HostLikeReplay(50, fields_of(make), device="cuda", **options)
    world = Episodes(make, 2, seed=0)
    for count in (1, 5, 2, 40, 3):
        steps = world.steps(count)
        host.extend(**steps)
        replay.extend(**steps)
        batch, actual = host.get(live(host)), replay.get(live(host))
        for name in (*NAMES, "terminated", "truncated"):
            np.testing.assert_array_equal(actual[name], batch[name], name)
    numbers = replay.draw(100).cpu().numpy()
    assert set(numbers.ravel()) == set(live(host))
