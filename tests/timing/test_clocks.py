"""Recordings of several machines, told by the clock of one."""

import numpy as np
import pytest

from hotloop import timing
from hotloop.profiler.collect import samples
from hotloop.timing.clocks import Clock, Clocks, clocks_of, compared


@pytest.fixture
def recorded(tmp_path):
    timing.start(tmp_path, "worker-0")
    with timing.span("outer"), timing.span("inner"):
        pass
    path = timing.stop()
    return timing.read(path)


def test_another_machines_recording_is_moved_by_its_offset(recorded):
    clocks = Clocks("ours", {recorded.boot_id: Clock("node-1", 5_000, 20, 2**32)})
    told = recorded.told_by(clocks)
    assert told.boot_id == "ours"
    assert told.pid == recorded.pid + 2**32
    assert told.parent_pid == recorded.parent_pid + 2**32
    assert told.start_ns == recorded.start_ns + 5_000
    np.testing.assert_array_equal(told.events["start_ns"], recorded.events["start_ns"] + 5_000)
    assert timing.render(told.tree()) == timing.render(recorded.tree())
    # The wall clock at any moment is the same.
    assert told.start_ns + told.wall_offset_ns == recorded.start_ns + recorded.wall_offset_ns


def test_a_recording_of_our_own_machine_stays_as_it_is(recorded):
    assert recorded.told_by(Clocks(recorded.boot_id, {})) is recorded


def test_a_directory_is_read_by_the_clocks_beside_it(recorded, tmp_path):
    Clocks("ours", {recorded.boot_id: Clock("node-1", -7, 3)}).write(tmp_path)
    (one,), problems = timing.read_directory(tmp_path)
    assert not problems
    assert one.start_ns == recorded.start_ns - 7


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": "a"}', '{"boot_id": "a", "others": [1]}'])
def test_clocks_that_can_not_be_read_move_nothing(recorded, tmp_path, text):
    (tmp_path / "clocks.json").write_text(text)
    assert clocks_of(tmp_path) == Clocks("", {})
    (one,), _ = timing.read_directory(tmp_path)
    assert one.start_ns == recorded.start_ns


def test_each_other_machine_has_numbers_of_processes_of_its_own():
    clocks = compared("ours", {"a": ("ours", 0, 1), "b": ("x", 5, 2), "c": ("y", 6, 3)})
    assert set(clocks.others) == {"x", "y"}
    first = {clock.first_pid for clock in clocks.others.values()}
    assert len(first) == 2
    assert min(first) >= 2**32


def test_samples_are_moved_as_recordings_are():
    about = {"boot_id": "x", "start_ns": 100, "pid": 7, "parent_pid": 6}
    one = samples.Samples(about=about, periods=[{"t": 3}, {"t": 4}], is_torn=False)
    told = samples.told_by(Clocks("ours", {"x": Clock("b", 10, 1, 1000)}), one)
    assert told.about == {"boot_id": "ours", "start_ns": 110, "pid": 1007, "parent_pid": 1006}
    assert [period["t"] for period in told.periods] == [13, 14]
