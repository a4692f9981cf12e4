"""The times of workers, from the recordings of their processes."""

import math
from types import SimpleNamespace

import pytest

from hotloop import timing
from hotloop.rollouts.accounting import recordings_of_this_run, time_shares
from hotloop.timing import Node


def test_workers_of_an_earlier_part_of_a_run_are_left_out(tmp_path, monkeypatch):
    this = timing.current()
    boots = (this.boot_id, -1), (this.boot_id, 0), ("before a reboot", 10**15)
    recordings = [
        SimpleNamespace(boot_id=boot, start_ns=this.start_ns + later_ns) for boot, later_ns in boots
    ]
    monkeypatch.setattr(timing, "read_directory", lambda _: (recordings, []))
    assert recordings_of_this_run(str(tmp_path)) == [recordings[1]]


def test_a_run_without_a_directory_of_recordings_has_none(tmp_path):
    assert recordings_of_this_run(str(tmp_path / "missing")) == []


def add_spans(parent, name, durations_ns):
    node = parent.child(name)
    for duration_ns in durations_ns:
        node.add(Node(name, count=1, total_ns=duration_ns, min_ns=duration_ns, max_ns=duration_ns))
    return node


def test_the_shares_of_a_workers_time():
    tree = Node("worker-0", total_ns=1_000)
    add_spans(tree, "env_reset", [40])
    step = add_spans(tree, "env_step", [200, 300])
    add_spans(step, "env_reset", [100])
    add_spans(tree, "act", [60])
    add_spans(tree.child("evaluate"), "wait_for_inference", [20])
    add_spans(tree, "wait", [70])
    shares = time_shares(tree)
    assert shares["step_share"] == pytest.approx(0.4)  # without the reset after a step
    assert shares["reset_share"] == pytest.approx(0.14)
    assert shares["act_share"] == pytest.approx(0.08)
    assert shares["wait_share"] == pytest.approx(0.07)
    assert shares["step_p99_s"] == pytest.approx(300e-9)
    assert shares["reset_p99_s"] == pytest.approx(100e-9)
    assert shares["lived_s"] == pytest.approx(1e-6)
    assert math.isnan(time_shares(Node("worker-1", total_ns=5))["step_p50_s"])
