"""Recordings of several machines, aligned to one clock."""

import numpy as np
import pytest

from hotloop import timing
from hotloop.profiler.collect import samples
from hotloop.timing.clocks import Clock, Clocks, node_clocks, read_clocks


@pytest.fixture
def recording(tmp_path):
    timing.start(tmp_path, "worker-0")
    with timing.span("outer"), timing.span("inner"):
        pass
    path = timing.stop()
    return timing.read(path)


def test_another_machines_recording_is_moved_by_its_offset(recording):
    clocks = Clocks("local", {recording.boot_id: Clock("node-1", 5_000, 20, 2**32)})
    aligned = recording.aligned_to(clocks)
    assert aligned.boot_id == "local"
    assert aligned.pid == recording.pid + 2**32
    assert aligned.parent_pid == recording.parent_pid + 2**32
    assert aligned.start_ns == recording.start_ns + 5_000
    np.testing.assert_array_equal(aligned.events["start_ns"], recording.events["start_ns"] + 5_000)
    assert timing.render(aligned.tree()) == timing.render(recording.tree())
    # The wall clock at any moment is the same.
    assert (
        aligned.start_ns + aligned.wall_offset_ns == recording.start_ns + recording.wall_offset_ns
    )


def test_a_local_recording_is_unchanged(recording):
    assert recording.aligned_to(Clocks(recording.boot_id, {})) is recording


def test_a_directory_is_aligned_by_its_clocks_file(recording, tmp_path):
    Clocks("local", {recording.boot_id: Clock("node-1", -7, 3)}).write(tmp_path)
    (aligned,), problems = timing.read_directory(tmp_path)
    assert not problems
    assert aligned.start_ns == recording.start_ns - 7


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": "a"}', '{"boot_id": "a", "others": [1]}'])
def test_unreadable_clocks_change_nothing(recording, tmp_path, text):
    (tmp_path / "clocks.json").write_text(text)
    assert read_clocks(tmp_path) == Clocks("", {})
    (unchanged,), _ = timing.read_directory(tmp_path)
    assert unchanged.start_ns == recording.start_ns


def test_each_remote_machine_has_its_own_pid_range():
    clocks = node_clocks("local", {"a": ("local", 0, 1), "b": ("x", 5, 2), "c": ("y", 6, 3)})
    assert set(clocks.by_boot) == {"x", "y"}
    first = {clock.first_pid for clock in clocks.by_boot.values()}
    assert len(first) == 2
    assert min(first) >= 2**32


def test_samples_are_aligned_like_recordings():
    header = {"boot_id": "x", "start_ns": 100, "pid": 7, "parent_pid": 6}
    threads = [[7, "python", 0, 0], [8, "python", 0, 0]]
    periods = [{"t": 3, "counts": [[7, 0, 0, 1, 0, 0, 0]], "threads": threads}, {"t": 4}]
    unaligned = samples.Samples(header=header, periods=periods)
    aligned = samples.align_clocks(Clocks("local", {"x": Clock("b", 10, 1, 1000)}), unaligned)
    assert aligned.header == {"boot_id": "local", "start_ns": 110, "pid": 1007, "parent_pid": 1006}
    first, second = aligned.periods
    assert (first["t"], second["t"]) == (13, 14)
    # The main thread has the number of its process.
    assert first["counts"] == [[1007, 0, 0, 1, 0, 0, 0]]
    assert [thread for thread, *_ in first["threads"]] == [1007, 8]
