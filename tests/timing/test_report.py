"""Trees, tables and `Timing`, compared with results computed by hand."""

from __future__ import annotations

import contextlib
import io
import math
import time

import numpy as np
import pytest
from rich.console import Console

from hotloop import timing
from hotloop.timing import Node
from hotloop.timing import _format as f
from hotloop.timing._fold import fold
from hotloop.timing.table import duration


def example_tree():
    """A tree of 1 s: train (200 and 400 ms) with 150 ms of forward in it, and 300 ms of waiting."""
    root = Node("learner", total_ns=10**9)
    train = root.child("train")
    for child, times in (
        (train, [200e6, 400e6]),
        (train.child("forward"), [150e6]),
        (root.child("queue", "wait"), [300e6]),
    ):
        row = np.zeros((1, f.ROW_WORDS), np.int64)
        spent = np.array(times).astype(np.int64)
        fold(row, np.zeros(len(times), np.int64), np.ones_like(spent), spent + 1)
        child.add(Node("", "work", *map(int, row[0, :4]), histogram=row[0, f.T_HIST :]))
    return root


def test_the_table():
    # 200 ms lies in the bucket from 2^27 × 11/8 to 2^27 × 12/8 ns, whose middle is 193. No span was
    # shorter than 200. The other durations are the longest of their spans.
    assert timing.render(example_tree()).split("\n") == [
        "span          share  calls    mean     p50     p99   total  kind",
        "learner      100.0%                                 1.00 s",
        "  train       60.0%      2  300 ms  200 ms  400 ms  600 ms",
        "    (rest)    45.0%                                 450 ms",
        "    forward   15.0%      1  150 ms  150 ms  150 ms  150 ms",
        "  queue       30.0%      1  300 ms  300 ms  300 ms  300 ms  wait",
        "  (rest)      10.0%                                 100 ms",
    ]


def test_small_shares_can_be_left_out():
    text = timing.render(example_tree(), min_share=0.2)
    assert "forward" not in text
    assert "queue" in text


def test_rich_prints_the_same_rows():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(timing.renderable(example_tree(), title="where [the] time went"))
    text = console.export_text()
    assert "where [the] time went" in text
    assert "forward" in text
    assert "45.0%" in text


def test_the_largest_cost():
    cost = timing.costliest(example_tree())
    assert cost == (("train",), "work", 450_000_000, 0.45)
    assert str(cost) == "train: 45% of the time"
    waiting = timing.costliest(example_tree(), kinds=("wait",))
    assert waiting is not None
    assert waiting.path == ("queue",)
    assert timing.costliest(Node("nothing")) is None


def test_merging_adds_up():
    merged = timing.merge([example_tree(), example_tree()], name="learners")
    assert (merged.name, merged.total_ns) == ("learners", 2 * 10**9)
    train = merged.find("train")
    assert (train.count, train.total_ns, train.min_ns, train.max_ns) == (
        4,
        1_200_000_000,
        200_000_000,
        400_000_000,
    )
    assert train.self_ns == 900_000_000
    assert example_tree().find("train").count == 2  # the merged trees are unchanged


def test_missing_spans_and_percentiles():
    with pytest.raises(KeyError, match="no span 'tran' in 'learner', which has: train, queue"):
        example_tree().find("tran")
    with pytest.raises(ValueError, match="pass 99 for p99"):
        example_tree().percentile(101)
    assert math.isnan(Node("x").percentile(50))
    assert math.isnan(Node("x").mean_ns)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.7, "1.00 µs"),
        (1234, "1.23 µs"),
        (12_345, "12.3 µs"),
        (123_456, "123 µs"),
        (999_900, "1.00 ms"),
        (12_345_678, "12.3 ms"),
        (4.2e9, "4.20 s"),
        (4321e9, "4,321.00 s"),
        (math.nan, "–"),
    ],
)
def test_durations(ns, text):
    assert duration(ns) == text


def test_report_of_this_process(span):
    with span("env_step"):
        pass
    lines = timing.report().split("\n")
    assert lines[0].startswith("span")
    assert any(line.startswith("  env_step") for line in lines)


def test_timing_report_has_the_layout_of_sample_factory(span, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    measured = timing.Timing(name="Learner 0")
    with measured.add_time("misc"):
        clock[0] += 0.0024
    for part in (1.0, 3.0):
        with measured.add_time("train"):
            with measured.time_avg("epoch"):
                clock[0] += part
            with measured.timeit("latest"):
                clock[0] += part
            with measured.add_time("losses"), measured.add_time("forward"):
                clock[0] += part
    with contextlib.suppress(RuntimeError), measured.add_time("failed"):
        clock[0] += 0.5
        raise RuntimeError
    assert str(measured) == (
        "Learner 0 profile tree view:\n"
        "misc: 0.0024, failed: 0.5000\n"
        "train: 12.0000\n"
        "  epoch: 2.0000, latest: 3.0000\n"
        "  losses: 4.0000\n"
        "    forward: 4.0000"
    )
    with measured.add_time("open"):
        with measured.add_time("inner"):
            clock[0] += 1.0
        assert str(measured).endswith("\nopen: 0.0000\n  inner: 1.0000")
    assert measured.epoch == measured["epoch"] == pytest.approx(2)
    with pytest.raises(AttributeError, match="no block 'epohc' was timed: there are misc"):
        _ = measured.epohc
    assert timing.current().tree().find("train", "losses", "forward").count == 2
