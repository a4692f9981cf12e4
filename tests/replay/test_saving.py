"""A saved buffer goes on exactly as it would have; a file that is not whole is refused whole."""

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

MAKES = {
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


def made(name, seed=0, **options):
    return ReplayBuffer(capacity=150, seed=seed, **{**MAKES[name], **options})


@pytest.fixture(params=list(MAKES), ids=lambda name: name.replace(" ", "-"))
def name(request):
    return request.param


class Story:
    """Environments that step, and an agent that draws, the same for every buffer."""

    def __init__(self, name, seed=1):
        self.make = MAKES[name]
        self.rng = np.random.default_rng(seed)
        self.num_envs = self.make.get("num_envs", 1)
        self.is_stack = "frame_stacks" in self.make
        self.given = (
            isinstance(self.make.get("sampler"), Proportional) and "weight_from" not in self.make
        )
        self.obs = [self._observed() for _ in range(self.num_envs)]

    def _value(self, shape, dtype):
        return (self.rng.random(shape) * 100).astype(dtype)

    def _observed(self, before=None):
        wanted = self.make["fields"]["obs"]
        if isinstance(wanted, dict):
            return {name: self._value(*one) for name, one in wanted.items()}
        obs = self._value(*wanted)
        if self.is_stack and before is not None:
            obs[:-1] = before[1:]
        return obs

    def step(self, buffer):
        env = int(self.rng.integers(self.num_envs))
        ends = self.rng.random()
        following = self._observed(self.obs[env])
        values = {
            "obs": self.obs[env],
            "next_obs": following,
            "reward": self.rng.normal(),
            "terminated": ends < 0.1,
            "truncated": 0.1 <= ends < 0.2,
        }
        for name in ("action", "memory"):
            if name in self.make["fields"]:
                values[name] = self._value(*self.make["fields"][name])
        weight = {"weight": self.rng.lognormal()} if self.given else {}
        buffer.add(env=env, **values, **weight)
        self.obs[env] = self._observed() if ends < 0.2 else following
        if self.rng.random() < 0.03:
            buffer.cut(env)
            self.obs[env] = self._observed()

    def go_on(self, buffer, num_steps):
        """Everything that was drawn."""
        drawn = []
        for _ in range(num_steps):
            self.step(buffer)
            if len(buffer) > 10 and self.rng.random() < 0.3:
                batch = buffer.sample(8)
                drawn.append(as_bytes(batch))
                weights = self.rng.exponential(size=8)
                if buffer.sampler.weighted:
                    late = int(self.rng.integers(2)) * 100  # some were overwritten since
                    buffer.update_weights(np.maximum(batch.index - late, 0), weights)
        return drawn


def as_bytes(batch):
    found = {}
    for key in batch:
        parts = batch[key].items() if isinstance(batch[key], dict) else [("", batch[key])]
        found |= {f"{key}.{part}": array.tobytes() for part, array in parts}
    return found


def content(buffer):
    """All that a user can see of it."""
    oldest = buffer.num_added - len(buffer)
    numbers = np.arange(oldest, buffer.num_added)
    return {
        **(as_bytes(buffer.get(numbers)) if len(buffer) else {}),
        "numbers": (oldest, buffer.num_added, buffer.num_samples),
        "counters": buffer.counters,
    }


def parts(path):
    with zipfile.ZipFile(path) as archive:
        return {one: archive.read(one) for one in archive.namelist()}


def assert_alike(one, other, story, num_steps=100):
    """That they go on alike, whatever happens to them."""
    assert content(one) == content(other)
    other_story = copy.deepcopy(story)
    drawn = story.go_on(one, num_steps)
    assert len(drawn) > num_steps / 6
    assert drawn == other_story.go_on(other, num_steps)
    assert content(one) == content(other)


# Exactness.


@pytest.mark.parametrize("num_steps", [3, 700])
def test_a_loaded_buffer_goes_on_as_the_saved_one(tmp_path, name, num_steps):
    buffer, story = made(name), Story(name)
    story.go_on(buffer, num_steps)
    before = content(buffer)
    buffer.save(tmp_path / "replay")
    assert content(buffer) == before
    loaded = ReplayBuffer.load(tmp_path / "replay")
    assert loaded.settings == buffer.settings
    assert loaded.sampler == buffer.sampler
    assert loaded.fields == buffer.fields
    loaded.save(tmp_path / "again")
    assert parts(tmp_path / "again") == parts(tmp_path / "replay")
    assert_alike(buffer, loaded, story)


@pytest.mark.parametrize("used", [0, 400])
def test_restore_leaves_nothing_of_what_was_there(tmp_path, name, used):
    buffer, story = made(name), Story(name)
    story.go_on(buffer, 333)
    buffer.save(tmp_path / "replay")
    other = made(name, seed=8)
    Story(name, seed=9).go_on(other, used)
    kept = other.sample(5) if used else None
    before = as_bytes(kept) if used else None
    other.restore(tmp_path / "replay")
    assert_alike(buffer, other, story)
    assert (as_bytes(kept) if used else None) == before


def test_batches_of_all_sizes_after_loading(tmp_path):
    # What the work space grew to must not matter.
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
            assert as_bytes(buffer.sample(size)) == as_bytes(loaded.sample(size))


def test_sums_are_made_from_the_same_shift(tmp_path):
    # The trees of a buffer that has seen a vast negative weight, and of one that is loaded.
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
            assert as_bytes(buffer.sample(size)) == as_bytes(loaded.sample(size))
        buffer.add(x=0, weight=2e5)


def test_settings_that_numpy_made(tmp_path):
    # Whatever a buffer can be made with can be saved.
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
        assert as_bytes(buffer.sample(5)) == as_bytes(loaded.sample(5))


@pytest.mark.parametrize("number", [0, 1])
def test_in_a_mapped_file(tmp_path, name, number):
    directory = tmp_path / "maps"
    directory.mkdir()
    buffer, story = made(name, memory_map=directory if number else None), Story(name)
    story.go_on(buffer, 400)
    buffer.save(tmp_path / "replay")
    loaded = ReplayBuffer.load(tmp_path / "replay", memory_map=None if number else directory)
    assert os.listdir(directory) == []  # nothing is left, however the process ends
    assert_alike(buffer, loaded, story)
    loaded.restore(tmp_path / "replay")
    assert content(loaded) == content(ReplayBuffer.load(tmp_path / "replay"))


# Where it is written.


def test_missing_directories_are_made_and_an_old_file_is_replaced(tmp_path):
    buffer, path = made("uniform"), tmp_path / "not" / "there" / "replay.zip"
    Story("uniform").go_on(buffer, 50)
    for _ in range(2):
        buffer.save(str(path))
        assert os.listdir(path.parent) == ["replay.zip"]
        assert content(ReplayBuffer.load(str(path))) == content(buffer)
        Story("uniform").go_on(buffer, 9)


def test_what_cannot_be_written(tmp_path):
    buffer = made("images")
    Story("images").go_on(buffer, 50)
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
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, failure, after):
    buffer, path = made("images"), tmp_path / "replay"
    Story("images").go_on(buffer, 100)
    buffer.save(path)
    whole = path.read_bytes()
    Story("images").go_on(buffer, 10)
    write, left = zipfile._ZipWriteFile.write, iter(range(after))

    def failing(self, data):
        if next(left, None) is None:
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


# What is refused.


class Refusing:
    """A buffer that refuses to restore a file, and its twin, which was not asked to."""

    def __init__(self, name, num_steps=170):
        self.name, self.story = name, Story(name, seed=21)
        self.buffer = made(name, seed=22)
        self.story.go_on(self.buffer, num_steps)
        self.twin = made(name, seed=22)
        Story(name, seed=21).go_on(self.twin, num_steps)

    def refuse(self, path, match=None, loads=True):
        """Neither `restore` nor `load` takes it."""
        before = self.buffer._store.handle.tobytes()
        with pytest.raises(CheckpointError, match=match) as raised:
            self.buffer.restore(path)
        assert str(path) in str(raised.value)
        assert self.buffer._store.handle.tobytes() == before  # or what follows may end the process
        assert content(self.buffer) == content(self.twin)
        if loads:
            with pytest.raises(CheckpointError, match=match):
                ReplayBuffer.load(path)

    def assert_as_it_was(self):
        assert_alike(self.buffer, self.twin, self.story)


@pytest.fixture
def refusing(name):
    return Refusing(name)


def saved(path, name, num_steps=120):
    buffer = made(name)
    Story(name).go_on(buffer, num_steps)
    buffer.save(path)
    return buffer


def test_a_file_that_was_cut(tmp_path, name, refusing):
    path = tmp_path / "replay"
    saved(path, name)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        borders = [one.header_offset for one in archive.infolist()] + [archive.start_dir]
    near = [border + away for border in borders for away in (-1, 0, 1, 29, 60)]
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


def data_places(path):
    """Where each part's bytes lie in the file."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for one in archive.infolist():
            file.seek(one.header_offset + 26)
            lengths = np.frombuffer(file.read(4), "<u2")
            yield one.filename, one.header_offset + 30 + int(lengths.sum()), one.file_size


def test_a_byte_that_was_flipped(tmp_path, name, refusing):
    path = tmp_path / "replay"
    saved(path, name)
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    for part, start, size in data_places(path):
        for place in sorted({0, size - 1, size // 2, int(rng.integers(max(size, 1)))}):
            if not 0 <= place < size:
                continue
            damaged = bytearray(whole)
            damaged[start + place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            refusing.refuse(path, match="damaged")
            assert part  # for the message, should it be taken
    refusing.assert_as_it_was()


def test_a_byte_that_was_flipped_between_the_parts(tmp_path):
    # Names, sizes, offsets: refused as well, unless it changes nothing of what is read.
    refusing, path = Refusing("episode's return", 30), tmp_path / "replay"
    buffer = saved(path, refusing.name, 20)
    whole, expected = path.read_bytes(), content(buffer)
    inside = np.zeros(len(whole), bool)
    for _, start, size in data_places(path):
        inside[start : start + size] = True
    refused = 0
    for place in np.flatnonzero(~inside)[::3]:  # odd ones and even ones
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


def rewritten(path, change=None, **changes):
    """The same file with another header, or other parts, all checksums right."""
    found = parts(path)
    header = json.loads(found["header.json"])
    header |= changes
    if change is not None:
        change(header, found)
    found["header.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for one, data in found.items():
            archive.writestr(one, data)


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
def test_another_version(tmp_path, changes, match):
    path, refusing = tmp_path / "replay", Refusing("images")
    saved(path, "images")
    rewritten(path, **changes)
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
def test_another_layout(tmp_path, options, match):
    path, refusing = tmp_path / "replay", Refusing("prioritized")
    options = {"capacity": 150, **MAKES["prioritized"], **options}
    ReplayBuffer(**options).save(path)
    refusing.refuse(path, match, loads=False)
    assert ReplayBuffer.load(path).settings["n_step"] == options["n_step"]
    refusing.assert_as_it_was()


def test_what_is_no_saved_buffer(tmp_path):
    refusing = Refusing("stacks")
    refusing.refuse(tmp_path / "missing", match="there is no")
    refusing.refuse(tmp_path, match="can't be read")
    path = tmp_path / "file"
    path.write_bytes(b"")
    refusing.refuse(path)
    path.write_text("no zip at all\n" * 100)
    refusing.refuse(path)
    np.savez(tmp_path / "arrays.npz", x=np.zeros(5))
    refusing.refuse(tmp_path / "arrays.npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", "[1, 2]")
    refusing.refuse(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", b"\xff\xfe{")
    refusing.refuse(path)
    with zipfile.ZipFile(path, "w"):
        pass
    refusing.refuse(path)
    refusing.assert_as_it_was()


def dropped(part):
    return lambda header, found: found.pop(part)


def shortened(part):
    def change(header, found):
        found[part] = found[part][:-1]

    return change


def lengthened(part):
    def change(header, found):
        found[part] += b"\0"

    return change


def set_in_header(*path):
    *path, last, value = path

    def change(header, found):
        inside = header
        for key in path:
            inside = inside[key]
        inside[last] = value

    return change


def without(key):
    return lambda header, found: header.pop(key)


def overwritten(part, dtype, value):
    """A part full of a number that leads nowhere."""

    def change(header, found):
        found[part] = np.full(len(found[part]) // np.dtype(dtype).itemsize, value, dtype).tobytes()

    return change


def fewer(header, found, part, count):
    found[part] = found[part][count:]
    header["sizes"][part] = len(found[part])


def bad_links(header, found):
    rows = np.frombuffer(found["rows"], np.uint8).copy()
    size = len(rows) // min(header["words"]["added"][0], header["settings"]["capacity"])
    for row in rows.reshape(-1, size):
        row[:] = 0x3F  # links to entries far beyond the last
    found["rows"] = rows.tobytes()


def set_words(word, row, value):
    """A word of one row, beside its fields."""

    def change(header, found):
        layout = made("sequences").layout
        start = row * layout.row_bytes + getattr(layout, word)
        found["rows"] = (
            found["rows"][:start] + np.int32(value).tobytes() + found["rows"][start + 4 :]
        )

    return change


CRAFTED = {
    "no rows": dropped("rows"),
    "no weights": dropped("weights"),
    "no frames": dropped("pool_0_frames"),
    "short rows": shortened("rows"),
    "short weights": shortened("weights"),
    "long heads": lengthened("heads"),
    "long frames": lengthened("pool_0_frames"),
    "no words": without("words"),
    "no pools": without("pools"),
    "no sizes": without("sizes"),
    "no num_samples": without("num_samples"),
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
    "with finals: no size of finals": lambda header, found: header["sizes"].pop("finals"),
    "with finals: finals are fewer": lambda header, found: fewer(header, found, "finals_free", 40),
    "with finals: finals are none": lambda header, found: fewer(header, found, "finals", 10**9),
    "size is negative": set_in_header("sizes", "finals_free", -4),
    "size is no number": set_in_header("sizes", "finals_free", None),
    "with finals: size is vast": set_in_header("sizes", "finals_free", 10**18),
    "num_samples is no number": set_in_header("num_samples", "x"),
    "pools is short": set_in_header("pools", []),
    "pools is vast": set_in_header("pools", [[10**12, 0]]),
    "pools is negative": set_in_header("pools", [[-1, 0]]),
    "pools free is more": set_in_header("pools", [[3, 4]]),
    "with finals: links lead nowhere": bad_links,
    "with finals: open heads lead nowhere": overwritten("env_39", np.int32, 10**6),
    "waiting is more than n": overwritten("env_42", np.int64, 77),
    "frames' counts are negative": overwritten("pool_0_counts", np.int32, -7),
    "sequences lead beyond the newest": set_words("following", 3, 150),
    "sequences lead back": set_words("following", 3, -1),
    "sequences lead elsewhere": set_words("following", 3, 60),
    "sequences come from later": set_words("previous", 3, -1),
    "weights are NaN": overwritten("weights", np.float64, np.nan),
    "weights are negative": overwritten("weights", np.float64, -1.0),
    "weights are beyond the limit": overwritten("weights", np.float64, 1e300),
}


@pytest.mark.parametrize("crafted", list(CRAFTED), ids=lambda name: name.replace(" ", "-"))
def test_a_whole_file_that_makes_no_sense(tmp_path, crafted):
    make = "proportional, three steps" if crafted.startswith("with finals") else "images"
    make = "sequences" if crafted.startswith("sequences") else make
    path, refusing = tmp_path / "replay", Refusing(make)
    saved(path, make)
    rewritten(path, CRAFTED[crafted])
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
def test_settings_that_no_buffer_has(tmp_path, key, value):
    path, refusing = tmp_path / "replay", Refusing("images")
    saved(path, "images")
    rewritten(path, **{key: value})
    refusing.refuse(path)
    refusing.assert_as_it_was()


# Memory that is not there.


def test_no_directory_for_the_map(tmp_path):
    path, refusing = tmp_path / "replay", Refusing("images")
    saved(path, "images")
    for wrong in (tmp_path / "missing", path):
        with pytest.raises(OutputError, match=str(wrong)):
            ReplayBuffer.load(path, memory_map=wrong)
        with pytest.raises(OutputError, match=str(wrong)):
            made("images", memory_map=wrong)
    refusing.assert_as_it_was()


def test_a_directory_that_has_gone(tmp_path):
    # There is no room for what is to be restored: what was there stays usable.
    path, directory = tmp_path / "replay", tmp_path / "maps"
    saved(path, "images")
    directory.mkdir()
    buffer, twin, story = made("images", memory_map=directory), made("images"), Story("images")
    copy.deepcopy(story).go_on(twin, 100)
    story.go_on(buffer, 100)
    directory.rmdir()
    before = buffer._store.handle.tobytes()
    with pytest.raises(OutputError):
        buffer.restore(path)
    assert buffer._store.handle.tobytes() == before
    assert content(buffer) == content(twin)


# A process that is killed.


def start_saving(moment, path):
    """Fork a process that adds to a saved buffer, saves it and is killed at a moment."""
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # objects of other tests belong to the parent
    try:
        _save_until_killed(moment, path)
    finally:
        os._exit(1)


def _save_until_killed(moment, path):
    def killed(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def add():
        x = np.arange(buffer.num_added, buffer.num_added + 100)
        buffer.extend(x=x, data=np.repeat(x[:, None], 256, 1))

    buffer = ReplayBuffer.load(path)
    add()
    if moment == "begin":
        zipfile.ZipFile.writestr = killed
    elif moment.startswith("piece"):
        saving._PIECE = 1 << 16
        left, cut = iter(range(int(moment[5:]))), saving._cut

        def cut_short(pieces):
            for piece in cut(pieces):
                yield piece
                if next(left, None) is None:
                    killed()

        saving._cut = cut_short
    elif moment == "end":
        zipfile.ZipFile._write_end_record = killed
    elif moment == "replace":
        os.replace = killed
    elif moment == "after":
        replace = os.replace
        os.replace = lambda *paths: (replace(*paths), killed())
    else:
        while True:
            buffer.save(path)
            add()
    buffer.save(path)


def counting(path, num_added):
    fields = {"x": ((), np.int64), "data": ((256,), np.int64)}
    buffer = ReplayBuffer(3000, fields, seed=1)
    x = np.arange(num_added)
    buffer.extend(x=x, data=np.repeat(x[:, None], 256, 1))
    buffer.save(path)


def assert_counts(path):
    """Whole: every entry says its own number."""
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
def test_killed_while_it_saves(tmp_path, moment, is_new):
    path = tmp_path / "replay"
    counting(path, 3500)
    whole = path.read_bytes()
    _, status = os.waitpid(start_saving(moment, path), 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert assert_counts(path) == (3600 if is_new else 3500)
    assert is_new or path.read_bytes() == whole
    for other in tmp_path.iterdir():
        if other != path and moment != "replace":  # there it was whole, but for its name
            with pytest.raises(CheckpointError):
                ReplayBuffer.load(other)
    ReplayBuffer.load(path).save(path)
    assert os.listdir(tmp_path) == ["replay"]


@pytest.mark.parametrize("delay", [0.02, 0.11, 0.37])
def test_killed_at_any_moment(tmp_path, delay):
    path = tmp_path / "replay"
    counting(path, 3500)
    before = path.stat().st_ino
    pid = start_saving("ever", path)
    while path.stat().st_ino == before:  # until it has replaced the file once
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert assert_counts(path) % 100 == 0
    for other in tmp_path.iterdir():
        with contextlib.suppress(CheckpointError):  # or it is whole, but for its name
            assert_counts(other)
