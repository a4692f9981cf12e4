"""A saved buffer continues exactly, and damaged files are refused as a whole."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import json
import os
import signal
import sys
import time
import zipfile

import numpy as np
import pytest

from hotloop.errors import CheckpointError, OutputError
from hotloop.replay import (
    Prioritized,
    Proportional,
    RankBased,
    ReplayBuffer,
    Sequences,
    Uniform,
    saving,
)

FLAGS = {"reward": ((), np.float32), "terminated": ((), np.bool_), "truncated": ((), np.bool_)}


def with_obs(shape, dtype=np.float32, **more):
    return {"obs": (shape, dtype), "next_obs": (shape, dtype), **FLAGS, **more}


NESTED = {"pos": ((2,), np.float64), "image": ((40, 30), np.uint8), "id": ((), np.int16)}

BUFFERS = {
    "uniform": {"fields": with_obs((3,))},
    "uniform without replacement": {
        "fields": with_obs((3,), action=((2,), np.int64)),
        "sampler": Uniform(replacement=False),
        "share_next_obs": True,
        "num_envs": 3,
    },
    "proportional": {"fields": with_obs((3,)), "sampler": Proportional()},
    "proportional, three steps": {
        "fields": with_obs((3,)),
        "sampler": Proportional(replacement=False),
        "n_step": 3,
        "num_envs": 2,
    },
    "proportional, set shift": {
        "fields": with_obs((5,), np.int8),
        "sampler": Proportional(replacement=False, shift=3.0),
        "share_next_obs": True,
    },
    "episode's return": {
        "fields": with_obs((3,)),
        "sampler": Proportional(replacement=False),
        "weight_from": "episode_return",
        "num_envs": 2,
    },
    "return to go, two steps": {
        "fields": with_obs((3,)),
        "sampler": Proportional(),
        "weight_from": "return_to_go",
        "n_step": 2,
        "num_envs": 3,
        "gamma": 0.9,
        "running_weight": 0.5,
    },
    "return so far": {
        "fields": with_obs((3,)),
        "sampler": Proportional(),
        "weight_from": "return_so_far",
        "share_next_obs": True,
    },
    "prioritized": {
        "fields": with_obs((3,)),
        "sampler": Prioritized(beta_samples=40, stratified=True),
        "n_step": 4,
    },
    "ranks": {
        "fields": with_obs((3,)),
        "sampler": RankBased(beta_samples=90, normalize="batch"),
        "share_next_obs": True,
        "num_envs": 2,
    },
    "sequences": {
        "fields": with_obs((3,), memory=((7,), np.float32)),
        "sampler": Sequences(length=5, burn_in=3),
        "share_next_obs": True,
        "num_envs": 2,
    },
    "images": {"fields": with_obs((40, 30), np.uint8), "sampler": Prioritized(), "n_step": 2},
    "images, plain": {"fields": with_obs((40, 30), np.uint8)},
    "stacks": {
        "fields": with_obs((4, 5, 5), np.uint8),
        "sampler": RankBased(),
        "share_next_obs": True,
        "frame_stacks": ("obs",),
        "num_envs": 2,
    },
    "nested": {
        "fields": {"obs": NESTED, "next_obs": NESTED, **FLAGS},
        "sampler": Proportional(),
        "share_next_obs": True,
    },
}


def create(name, seed=0, **options):
    return ReplayBuffer(capacity=150, seed=seed, **{**BUFFERS[name], **options})


@pytest.fixture(params=list(BUFFERS), ids=lambda name: name.replace(" ", "-"))
def name(request):
    return request.param


class Story:
    """Stepping environments and a drawing agent that act alike for every buffer."""

    def __init__(self, name, seed=1):
        self.make = BUFFERS[name]
        self.rng = np.random.default_rng(seed)
        self.num_envs = self.make.get("num_envs", 1)
        self.is_stack = "frame_stacks" in self.make
        self.takes_weight = (
            isinstance(self.make.get("sampler"), Proportional) and "weight_from" not in self.make
        )
        self.obs = [self._new_obs() for _ in range(self.num_envs)]

    def _value(self, shape, dtype):
        return (self.rng.random(shape) * 100).astype(dtype)

    def _new_obs(self, before=None):
        spec = self.make["fields"]["obs"]
        if isinstance(spec, dict):
            return {name: self._value(*part_spec) for name, part_spec in spec.items()}
        obs = self._value(*spec)
        if self.is_stack and before is not None:
            obs[:-1] = before[1:]
        return obs

    def step(self, buffer):
        env = int(self.rng.integers(self.num_envs))
        ends = self.rng.random()
        next_obs = self._new_obs(self.obs[env])
        values = {
            "obs": self.obs[env],
            "next_obs": next_obs,
            "reward": self.rng.normal(),
            "terminated": ends < 0.1,
            "truncated": 0.1 <= ends < 0.2,
        }
        for name in ("action", "memory"):
            if name in self.make["fields"]:
                values[name] = self._value(*self.make["fields"][name])
        weight = {"weight": self.rng.lognormal()} if self.takes_weight else {}
        buffer.add(env=env, **values, **weight)
        self.obs[env] = self._new_obs() if ends < 0.2 else next_obs
        if self.rng.random() < 0.03:
            buffer.cut(env)
            self.obs[env] = self._new_obs()

    def run(self, buffer, num_steps):
        """Take steps and return all draws."""
        draws = []
        for _ in range(num_steps):
            self.step(buffer)
            if len(buffer) > 10 and self.rng.random() < 0.3:
                batch = buffer.sample(8)
                draws.append(bytes_of(batch))
                weights = self.rng.exponential(size=8)
                if buffer.sampler.weighted:
                    delay = int(self.rng.integers(2)) * 100  # some entries were overwritten
                    buffer.update_weights(np.maximum(batch.index - delay, 0), weights)
        return draws


def bytes_of(batch):
    found = {}
    for key in batch:
        read_parts = batch[key].items() if isinstance(batch[key], dict) else [("", batch[key])]
        found |= {f"{key}.{part}": array.tobytes() for part, array in read_parts}
    return found


def content(buffer):
    """Return everything that a user can read from the buffer."""
    oldest = buffer.num_added - len(buffer)
    numbers = np.arange(oldest, buffer.num_added)
    return {
        **(bytes_of(buffer.get(numbers)) if len(buffer) else {}),
        "numbers": (oldest, buffer.num_added, buffer.num_samples),
        "counters": buffer.counters,
    }


def read_parts(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def assert_alike(buffer, expected, story, num_steps=100):
    """Check that two buffers behave alike from here on."""
    assert content(buffer) == content(expected)
    same_story = copy.deepcopy(story)
    draws = story.run(buffer, num_steps)
    assert len(draws) > num_steps / 6
    assert draws == same_story.run(expected, num_steps)
    assert content(buffer) == content(expected)


# Exactness.


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("num_steps", [3, 700])
def test_loaded_buffer_continues_like_the_saved_one(tmp_path, name, num_steps, is_mapped):
    directory = tmp_path / "maps"
    directory.mkdir()
    buffer, story = create(name, memory_map=None if is_mapped else directory), Story(name)
    story.run(buffer, num_steps)
    before = content(buffer)
    buffer.save(tmp_path / "replay")
    assert content(buffer) == before
    mapped = directory if is_mapped else None
    loaded = ReplayBuffer.load(tmp_path / "replay", memory_map=mapped)
    assert os.listdir(directory) == []  # no file remains, however the process ends
    assert loaded.settings == buffer.settings
    assert loaded.sampler == buffer.sampler
    assert loaded.fields == buffer.fields
    loaded.save(tmp_path / "again")
    assert read_parts(tmp_path / "again") == read_parts(tmp_path / "replay")
    assert_alike(buffer, loaded, story)
    loaded.restore(tmp_path / "replay")
    assert content(loaded) == before


@pytest.mark.parametrize("num_steps", [0, 400])
def test_restore_replaces_all_content(tmp_path, name, num_steps):
    buffer, story = create(name), Story(name)
    story.run(buffer, 333)
    buffer.save(tmp_path / "replay")
    other = create(name, seed=8)
    Story(name, seed=9).run(other, num_steps)
    batch = other.sample(5) if num_steps else None
    before = bytes_of(batch) if num_steps else None
    other.restore(tmp_path / "replay")
    assert_alike(buffer, other, story)
    assert (bytes_of(batch) if num_steps else None) == before


def test_batches_of_all_sizes_after_loading(tmp_path):
    # The size of the work space must not matter.
    for sampler in (Proportional(), Proportional(replacement=False), Uniform(replacement=False)):
        rng = np.random.default_rng(2)
        buffer = ReplayBuffer(5000, {"x": ((), np.int64)}, sampler=sampler, seed=3)
        weights = {"weight": rng.random(5000)} if sampler.weighted else {}
        buffer.extend(x=np.arange(5000), **weights)
        if sampler.weighted:
            buffer.update_weights(np.arange(5000), rng.lognormal(0, 1, 5000))
        buffer.sample(4000)
        buffer.save(tmp_path / "replay")
        loaded = ReplayBuffer.load(tmp_path / "replay")
        for size in (1, 10, 1000, 1500, 3000, 4999, 7):
            assert bytes_of(buffer.sample(size)) == bytes_of(loaded.sample(size))


def test_loaded_sums_have_the_same_shift(tmp_path):
    # Compare the trees of a buffer that once held vast negative weights with loaded ones.
    rng = np.random.default_rng(4)
    buffer = ReplayBuffer(
        300, {"x": ((), np.int64)}, sampler=Proportional(replacement=False), seed=5
    )
    buffer.extend(x=np.arange(300), weight=-1e6 + rng.random(300))
    buffer.sample(20)
    buffer.extend(x=np.arange(299), weight=rng.random(299) * 1e5)
    for _ in range(3):
        buffer.save(tmp_path / "replay")
        loaded = ReplayBuffer.load(tmp_path / "replay")
        for size in (1, 200, 50):
            assert bytes_of(buffer.sample(size)) == bytes_of(loaded.sample(size))
        buffer.add(x=0, weight=2e5)


def test_settings_may_be_numpy_scalars(tmp_path):
    # All valid options can be saved.
    fields = {"x": ((np.int64(2),), "float32")}
    for sampler in (
        Proportional(shift=np.float32(1.5), replacement=np.bool_(False)),
        Prioritized(alpha=np.float32(0.5), beta_samples=np.int64(7), epsilon=np.float64(0.1)),
        RankBased(alpha=np.float32(0.5), stratified=np.bool_(True)),
        Uniform(replacement=np.bool_(False)),
    ):
        buffer = ReplayBuffer(np.int64(9), fields, sampler=sampler, seed=np.int64(3))
        weights = {"weight": np.ones(9)} if sampler.weighted else {}
        buffer.extend(x=np.zeros((9, 2)), **weights)
        buffer.save(tmp_path / "replay")
        loaded = ReplayBuffer.load(tmp_path / "replay")
        loaded.restore(tmp_path / "replay")
        assert bytes_of(buffer.sample(5)) == bytes_of(loaded.sample(5))


# Target files.


def test_missing_directories_are_created_and_old_files_replaced(tmp_path):
    buffer, path = create("uniform"), tmp_path / "not" / "there" / "replay.zip"
    Story("uniform").run(buffer, 50)
    for _ in range(2):
        buffer.save(str(path))
        assert os.listdir(path.parent) == ["replay.zip"]
        assert content(ReplayBuffer.load(str(path))) == content(buffer)
        Story("uniform").run(buffer, 9)


def test_unwritable_targets(tmp_path):
    buffer = create("images")
    Story("images").run(buffer, 50)
    before = content(buffer)
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "file" / "replay", tmp_path / "directory"):
        with pytest.raises(OutputError, match="can't be written"):
            buffer.save(path)
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]
    assert content(buffer) == before


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_failed_save_keeps_the_old_file(tmp_path, monkeypatch, failure, after):
    buffer, path = create("images"), tmp_path / "replay"
    Story("images").run(buffer, 100)
    buffer.save(path)
    whole = path.read_bytes()
    Story("images").run(buffer, 10)
    write, remaining = zipfile._ZipWriteFile.write, iter(range(after))

    def failing(self, data):
        if next(remaining, None) is None:
            raise failure
        return write(self, data)

    monkeypatch.setattr(zipfile._ZipWriteFile, "write", failing)
    expected = OutputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        buffer.save(path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["replay"]
    assert path.read_bytes() == whole
    buffer.save(path)
    assert content(ReplayBuffer.load(path)) == content(buffer)


# Refused files.


class RefusalCheck:
    """A buffer that must refuse a file, and a twin to compare it with."""

    def __init__(self, name, num_steps=170):
        self.name, self.story = name, Story(name, seed=21)
        self.buffer = create(name, seed=22)
        self.story.run(self.buffer, num_steps)
        self.twin = create(name, seed=22)
        Story(name, seed=21).run(self.twin, num_steps)

    def refuse(self, path, match=None, loads=True):
        """Check that neither `restore` nor `load` accepts the file."""
        before = self.buffer._store.handle.tobytes()
        with pytest.raises(CheckpointError, match=match) as error:
            self.buffer.restore(path)
        assert str(path) in str(error.value)
        assert self.buffer._store.handle.tobytes() == before  # else the process may crash
        assert content(self.buffer) == content(self.twin)
        if loads:
            with pytest.raises(CheckpointError, match=match):
                ReplayBuffer.load(path)

    def assert_as_it_was(self):
        assert_alike(self.buffer, self.twin, self.story)


@pytest.fixture
def refusing(name):
    return RefusalCheck(name)


def save_example(path, name, num_steps=120):
    buffer = create(name)
    Story(name).run(buffer, num_steps)
    buffer.save(path)
    return buffer


def test_truncated_file(tmp_path, name, refusing):
    path = tmp_path / "replay"
    save_example(path, name)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        boundaries = [part.header_offset for part in archive.infolist()] + [archive.start_dir]
    near = [border + offset for border in boundaries for offset in (-1, 0, 1, 29, 60)]
    rng = np.random.default_rng(3)
    places = {0, 1, 21, len(whole) - 1, len(whole) - 21, len(whole) - 22, len(whole) - 23, *near}
    for place in sorted({*places, *rng.integers(0, len(whole), 6).tolist()}):
        if 0 <= place < len(whole):
            path.write_bytes(whole[:place])
            refusing.refuse(path)
    path.write_bytes(whole[1:])
    refusing.refuse(path)
    path.write_bytes(whole[: len(whole) // 2] + whole[len(whole) // 2 + 1 :])
    refusing.refuse(path)
    refusing.assert_as_it_was()


def part_positions(path):
    """Yield the name, position and size of each part's data."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for part in archive.infolist():
            file.seek(part.header_offset + 26)
            lengths = np.frombuffer(file.read(4), "<u2")
            yield part.filename, part.header_offset + 30 + int(lengths.sum()), part.file_size


def test_flipped_byte_in_a_part(tmp_path, name, refusing):
    path = tmp_path / "replay"
    save_example(path, name)
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    for part, start, size in part_positions(path):
        for place in sorted({0, size - 1, size // 2, int(rng.integers(max(size, 1)))}):
            if not 0 <= place < size:
                continue
            damaged = bytearray(whole)
            damaged[start + place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            refusing.refuse(path, match="damaged")
            assert part  # names the part in the message
    refusing.assert_as_it_was()


def test_flipped_byte_between_the_parts(tmp_path):
    # Changed names, sizes and offsets are refused, unless nothing that is read changes.
    refusing, path = RefusalCheck("episode's return", 30), tmp_path / "replay"
    buffer = save_example(path, refusing.name, 20)
    whole, expected = path.read_bytes(), content(buffer)
    inside = np.zeros(len(whole), bool)
    for _, start, size in part_positions(path):
        inside[start : start + size] = True
    refused = 0
    for place in np.flatnonzero(~inside)[::3]:  # odd and even positions
        damaged = bytearray(whole)
        damaged[place] ^= 8 if place % 2 else 0xFF
        path.write_bytes(damaged)
        try:
            loaded = ReplayBuffer.load(path)
        except CheckpointError:
            refused += 1
            if place % 7 == 0:
                refusing.refuse(path)
        else:
            assert content(loaded) == expected
    assert refused > 100
    refusing.assert_as_it_was()


def rewrite(path, change=None, **changes):
    """Rewrite the file with another header or other parts, and valid checksums."""
    file_parts = read_parts(path)
    header = json.loads(file_parts["header.json"])
    header |= changes
    if change is not None:
        change(header, file_parts)
    file_parts["header.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in file_parts.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 2}, "is of version 2, and this hotloop reads 1"),
        ({"version": 0}, "is of version 0"),
        ({"version": None}, "is of version None"),
        ({"format": "hotloop checkpoint"}, "is no saved replay buffer"),
        ({"byte_order": "big" if sys.byteorder == "little" else "little"}, "other byte order"),
    ],
)
def test_other_versions_are_refused(tmp_path, changes, match):
    path, refusing = tmp_path / "replay", RefusalCheck("images")
    save_example(path, "images")
    rewrite(path, **changes)
    refusing.refuse(path, match)
    refusing.assert_as_it_was()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"capacity": 151}, "other settings: .*151"),
        ({"n_step": 3}, "other settings"),
        ({"gamma": 0.5}, "other settings"),
        ({"num_envs": 2}, "other settings"),
        ({"running_weight": 1.0}, "other settings"),
        ({"fields": with_obs((4,))}, "other fields"),
        ({"fields": with_obs((3,), np.float64)}, "other fields"),
        ({"fields": with_obs((3,), extra=((), np.int8))}, "other fields"),
        ({"sampler": Prioritized(alpha=0.5, beta_samples=40, stratified=True)}, "other sampler"),
        ({"sampler": RankBased(beta_samples=40, stratified=True)}, "other sampler"),
        ({"sampler": Uniform()}, "other sampler"),
    ],
)
def test_other_settings_are_refused(tmp_path, options, match):
    path, refusing = tmp_path / "replay", RefusalCheck("prioritized")
    options = {"capacity": 150, **BUFFERS["prioritized"], **options}
    ReplayBuffer(**options).save(path)
    refusing.refuse(path, match, loads=False)
    assert ReplayBuffer.load(path).settings["n_step"] == options["n_step"]
    refusing.assert_as_it_was()


def test_other_files_are_refused(tmp_path):
    refusing = RefusalCheck("stacks")
    refusing.refuse(tmp_path / "missing", match="there is no")
    refusing.refuse(tmp_path, match="can't be read")
    path = tmp_path / "file"
    for content_of_file in (b"", b"no zip at all\n" * 100):
        path.write_bytes(content_of_file)
        refusing.refuse(path)
    np.savez(tmp_path / "arrays.npz", x=np.zeros(5))
    refusing.refuse(tmp_path / "arrays.npz")
    for header in (b"[1, 2]", b"\xff\xfe{", None):
        with zipfile.ZipFile(path, "w") as archive:
            if header is not None:
                archive.writestr("header.json", header)
        refusing.refuse(path)
    refusing.assert_as_it_was()


def drop(part):
    return lambda header, parts: parts.pop(part)


def shorten(part):
    def change(header, parts):
        parts[part] = parts[part][:-1]

    return change


def lengthen(part):
    def change(header, parts):
        parts[part] += b"\0"

    return change


def set_in_header(*path):
    *path, last, value = path

    def change(header, parts):
        node = header
        for key in path:
            node = node[key]
        node[last] = value

    return change


def drop_key(key):
    return lambda header, parts: header.pop(key)


def overwrite(part, dtype, value):
    """Fill a part with one invalid number."""

    def change(header, parts):
        parts[part] = np.full(len(parts[part]) // np.dtype(dtype).itemsize, value, dtype).tobytes()

    return change


def fewer(header, parts, part, count):
    parts[part] = parts[part][count:]
    header["sizes"][part] = len(parts[part])


def bad_links(header, parts):
    rows = np.frombuffer(parts["rows"], np.uint8).copy()
    size = len(rows) // min(header["words"]["added"][0], header["settings"]["capacity"])
    for row in rows.reshape(-1, size):
        row[:] = 0x3F  # links to entries far beyond the last
    parts["rows"] = rows.tobytes()


def set_words(word, row, value):
    """Set a word of one row outside of its fields."""

    def change(header, parts):
        layout = create("sequences").layout
        start = row * layout.row_bytes + getattr(layout, word)
        parts["rows"] = (
            parts["rows"][:start] + np.int32(value).tobytes() + parts["rows"][start + 4 :]
        )

    return change


CRAFTED = {
    "no rows": drop("rows"),
    "no weights": drop("weights"),
    "no frames": drop("pool_0_frames"),
    "short rows": shorten("rows"),
    "short weights": shorten("weights"),
    "long heads": lengthen("heads"),
    "long frames": lengthen("pool_0_frames"),
    "no words": drop_key("words"),
    "no pools": drop_key("pools"),
    "no sizes": drop_key("sizes"),
    "no num_samples": drop_key("num_samples"),
    "added is negative": set_in_header("words", "added", [-5]),
    "added is more": set_in_header("words", "added", [150]),
    "added is no number": set_in_header("words", "added", ["many"]),
    "added is vast": set_in_header("words", "added", [2**70]),
    "added is none": set_in_header("words", "added", []),
    "random is short": set_in_header("words", "random", [1, 2]),
    "random is zero": set_in_header("words", "random", [0, 0, 0, 0]),
    "finals_free is none": set_in_header("words", "finals_free", []),
    "with finals: finals_free is negative": set_in_header("words", "finals_free", [-1]),
    "with finals: finals_free is more": set_in_header("words", "finals_free", [10**6]),
    "base is infinite": set_in_header("words", "base", [0x7FF0000000000000]),
    "with finals: no size of finals": lambda header, parts: header["sizes"].pop("finals"),
    "with finals: finals are fewer": lambda header, parts: fewer(header, parts, "finals_free", 40),
    "with finals: finals are none": lambda header, parts: fewer(header, parts, "finals", 10**9),
    "size is negative": set_in_header("sizes", "finals_free", -4),
    "size is no number": set_in_header("sizes", "finals_free", None),
    "with finals: size is vast": set_in_header("sizes", "finals_free", 10**18),
    "num_samples is no number": set_in_header("num_samples", "x"),
    "pools is short": set_in_header("pools", []),
    "pools is vast": set_in_header("pools", [[10**12, 0]]),
    "pools is negative": set_in_header("pools", [[-1, 0]]),
    "pools free is more": set_in_header("pools", [[3, 4]]),
    "with finals: links lead nowhere": bad_links,
    "with finals: open heads lead nowhere": overwrite("env_39", np.int32, 10**6),
    "waiting is more than n": overwrite("env_42", np.int64, 77),
    "frames' counts are negative": overwrite("pool_0_counts", np.int32, -7),
    "sequences lead beyond the newest": set_words("following", 3, 150),
    "sequences lead back": set_words("following", 3, -1),
    "sequences lead elsewhere": set_words("following", 3, 60),
    "sequences come from later": set_words("previous", 3, -1),
    "weights are NaN": overwrite("weights", np.float64, np.nan),
    "weights are negative": overwrite("weights", np.float64, -1.0),
    "weights are beyond the limit": overwrite("weights", np.float64, 1e300),
}


@pytest.mark.parametrize("crafted", list(CRAFTED), ids=lambda name: name.replace(" ", "-"))
def test_inconsistent_files_are_refused(tmp_path, crafted):
    make = "proportional, three steps" if crafted.startswith("with finals") else "images"
    make = "sequences" if crafted.startswith("sequences") else make
    path, refusing = tmp_path / "replay", RefusalCheck(make)
    save_example(path, make)
    rewrite(path, CRAFTED[crafted])
    refusing.refuse(path)
    refusing.assert_as_it_was()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sampler", {"kind": "Uniformly"}),
        ("sampler", {"kind": "Uniform", "replacement": True, "more": 1}),
        ("sampler", {"kind": "Prioritized", "alpha": -1.0}),
        ("sampler", []),
        ("fields", []),
        ("fields", [[["x"], [2], "object"]]),
        ("fields", 3),
        ("settings", {}),
        ("settings", {"capacity": 0}),
        ("settings", {"capacity": 150, "more": 1}),
        ("settings", []),
    ],
)
def test_bad_settings_are_refused(tmp_path, key, value):
    path, refusing = tmp_path / "replay", RefusalCheck("images")
    save_example(path, "images")
    rewrite(path, **{key: value})
    refusing.refuse(path)
    refusing.assert_as_it_was()


# Missing memory.


def test_missing_directory_for_the_map(tmp_path):
    path, refusing = tmp_path / "replay", RefusalCheck("images")
    save_example(path, "images")
    for wrong in (tmp_path / "missing", path):
        with pytest.raises(OutputError, match=str(wrong)):
            ReplayBuffer.load(path, memory_map=wrong)
        with pytest.raises(OutputError, match=str(wrong)):
            create("images", memory_map=wrong)
    refusing.assert_as_it_was()


def test_restore_without_a_directory_keeps_the_content(tmp_path):
    # The restored content does not fit, so the old content stays usable.
    path, directory = tmp_path / "replay", tmp_path / "maps"
    save_example(path, "images")
    directory.mkdir()
    buffer, twin, story = (
        create("images", memory_map=directory),
        create("images"),
        Story("images"),
    )
    copy.deepcopy(story).run(twin, 100)
    story.run(buffer, 100)
    directory.rmdir()
    before = buffer._store.handle.tobytes()
    with pytest.raises(OutputError):
        buffer.restore(path)
    assert buffer._store.handle.tobytes() == before
    assert content(buffer) == content(twin)


# Killed processes.


def start_saving(moment, path):
    """Fork a process that adds to a saved buffer, saves it and is killed at `moment`."""
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # objects of other tests belong to the parent
    try:
        _save_until_killed(moment, path)
    finally:
        os._exit(1)


def _save_until_killed(moment, path):
    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def add():
        x = np.arange(buffer.num_added, buffer.num_added + 100)
        buffer.extend(x=x, data=np.repeat(x[:, None], 256, 1))

    buffer = ReplayBuffer.load(path)
    add()
    if moment == "begin":
        zipfile.ZipFile.writestr = kill
    elif moment.startswith("piece"):
        saving._CHUNK_BYTES = 1 << 16
        remaining, chunks_of = iter(range(int(moment[5:]))), saving._as_chunks

        def cut_short(pieces):
            for piece in chunks_of(pieces):
                yield piece
                if next(remaining, None) is None:
                    kill()

        saving._as_chunks = cut_short
    elif moment == "end":
        zipfile.ZipFile._write_end_record = kill
    elif moment == "replace":
        os.replace = kill
    elif moment == "after":
        replace = os.replace
        os.replace = lambda *paths: (replace(*paths), kill())
    else:
        while True:
            buffer.save(path)
            add()
    buffer.save(path)


def save_counts(path, num_added):
    fields = {"x": ((), np.int64), "data": ((256,), np.int64)}
    buffer = ReplayBuffer(3000, fields, seed=1)
    x = np.arange(num_added)
    buffer.extend(x=x, data=np.repeat(x[:, None], 256, 1))
    buffer.save(path)


def check_counts(path):
    """Check that every entry holds its own number, and return the number added."""
    buffer = ReplayBuffer.load(path)
    numbers = np.arange(buffer.num_added - len(buffer), buffer.num_added)
    batch = buffer.get(numbers)
    np.testing.assert_array_equal(batch.x, numbers)
    np.testing.assert_array_equal(batch.data, np.repeat(numbers[:, None], 256, 1))
    return buffer.num_added


@pytest.mark.parametrize(
    ("moment", "is_new"),
    [
        ("begin", False),
        ("piece0", False),
        ("piece50", False),
        ("piece93", False),
        ("end", False),
        ("replace", False),
        ("after", True),
    ],
)
def test_killed_while_saving(tmp_path, moment, is_new):
    path = tmp_path / "replay"
    save_counts(path, 3500)
    whole = path.read_bytes()
    _, status = os.waitpid(start_saving(moment, path), 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert check_counts(path) == (3600 if is_new else 3500)
    assert is_new or path.read_bytes() == whole
    for leftover in tmp_path.iterdir():
        if leftover != path and moment != "replace":  # before the rename, the new file is complete
            with pytest.raises(CheckpointError):
                ReplayBuffer.load(leftover)
    ReplayBuffer.load(path).save(path)
    assert os.listdir(tmp_path) == ["replay"]


@pytest.mark.parametrize("delay", [0.02, 0.11, 0.37])
def test_killed_at_any_moment(tmp_path, delay):
    path = tmp_path / "replay"
    save_counts(path, 3500)
    before = path.stat().st_ino
    pid = start_saving("ever", path)
    while path.stat().st_ino == before:  # wait until the file was replaced once
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert check_counts(path) % 100 == 0
    for leftover in tmp_path.iterdir():
        with contextlib.suppress(CheckpointError):  # or the file is complete and not yet renamed
            check_counts(leftover)
