"""The arithmetic of the experiment, from windows that are made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hotloop.profiler.render import what_if as rendering
from hotloop.profiler.what_if import elasticity
from hotloop.profiler.what_if.elasticity import Window
from hotloop.profiler.what_if.places import Place, SampledTime, ThreadPlaces
from hotloop.profiler.what_if.result import RESULT_FILE, WhatIf, measured, read_result

MS = 1_000_000
FAST, SLOW = Place("line", "/a.py", 3, "fast"), Place("line", "/a.py", 4, "slow")
LOOP = Place("loop", "/a.py", 2, "main")


def serial_windows(times_ms: list[float], rest_ms: float, delay: float, pairs: int) -> list[Window]:
    """Return the windows of a loop that passes the candidates one after another, without noise."""
    period_ms = sum(times_ms) + rest_ms
    windows: list[Window] = []
    for _ in range(pairs):
        for index, time_ms in enumerate(times_ms):
            windows.append(Window(-1, 20, round(20 * period_ms * MS), 0))
            added_ms = delay * time_ms
            duration_ns = round(20 * (period_ms + added_ms) * MS)
            windows.append(Window(index, 20, duration_ns, round(20 * added_ms * MS)))
    return windows


def sampled(windows: list[Window], times_ms: list[float]) -> dict[ThreadPlaces, SampledTime]:
    units = sum(window.progress for window in windows)
    return {
        ThreadPlaces(place, frozenset([place]), (LOOP,), True): SampledTime(
            cpu_ns=units * time_ms * MS, count=10_000
        )
        for place, time_ms in zip((FAST, SLOW), times_ms, strict=True)
    }


def result_of(windows: list[Window], times_ms: list[float]) -> WhatIf:
    units = sum(window.progress for window in windows)
    return measured(
        [FAST, SLOW],
        windows,
        sampled(windows, times_ms),
        1e9,
        units,  # in the second of `duration_ns`
        LOOP,
        0.2,
        excludes_queues=True,
    )


def test_elasticities_of_a_serial_loop_are_the_shares_of_its_places() -> None:
    times_ms = [1.0, 6.0]
    result = result_of(serial_windows(times_ms, 3.0, 0.5, 10), times_ms)
    slow, fast = result.effects
    assert (slow.place, fast.place) == ("a.py:4 in slow", "a.py:3 in fast")
    assert slow.elasticity == pytest.approx(0.6, abs=1e-6)
    assert fast.elasticity == pytest.approx(0.1, abs=1e-6)
    assert slow.share == pytest.approx(0.6, abs=1e-6)
    assert slow.delay == pytest.approx(0.5, abs=1e-6)
    assert slow.pairs == 10
    # 7 ms instead of 10 if the 6 ms become 3.
    assert slow.twice_as_fast == pytest.approx(10 / 7)
    assert result.rate == pytest.approx(100.0)


def test_a_stage_that_is_not_the_bottleneck_has_no_effect() -> None:
    # Delays of the first stage disappear while the second one works.
    busy_ms = [9.0, 3.0]
    windows = [
        window._replace(duration_ns=20 * 10 * MS) if window.candidate == 0 else window
        for window in serial_windows(busy_ms, -2.0, 0.5, 10)
    ]
    result = result_of(windows, busy_ms)
    limiting, busiest = result.effects
    assert busiest.elasticity == pytest.approx(0.0, abs=1e-6)
    assert limiting.elasticity == pytest.approx(0.3, abs=1e-6)
    assert result.busiest is busiest
    assert result.bottleneck is limiting
    assert "a.py:4 in slow limits the program" in rendering.sentences(result)[1]


def test_windows_are_compared_with_their_neighbors() -> None:
    # The program becomes twice as slow half-way. Each pair is within one half.
    first = serial_windows([1.0, 6.0], 3.0, 0.5, 6)
    second = [w._replace(duration_ns=2 * w.duration_ns, delay_ns=2 * w.delay_ns) for w in first]
    ratios = elasticity.log_ratios([*first, *second], 1)
    assert ratios[:5] == pytest.approx(math.log(1.3))
    assert ratios[6:] == pytest.approx(math.log(1.3))


def test_an_outlier_changes_little() -> None:
    ratios = np.full(20, math.log(1.3))
    clean = elasticity.elasticity(ratios, 0.5)
    ratios[3] = math.log(4.0)
    disturbed = elasticity.elasticity(ratios, 0.5)
    assert clean.value == pytest.approx(0.6)
    assert disturbed.value == pytest.approx(0.6)


def test_intervals_contain_the_true_value_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        ratios = math.log(1.3) + rng.normal(0, 0.1, 15)
        effect = elasticity.elasticity(ratios, 0.5)
        hits += abs(effect.value - 0.6) <= effect.error
    assert 920 <= hits <= 975


def test_too_few_windows_are_refused_in_one_sentence() -> None:
    result = result_of(serial_windows([1.0, 6.0], 3.0, 0.5, 4), [1.0, 6.0])
    assert not result.effects
    (sentence,) = rendering.sentences(result)
    assert "4 of at least 6 pairs" in sentence
    assert "more" in sentence


def test_a_result_is_stored_and_read(tmp_path: Path) -> None:
    result = result_of(serial_windows([1.0, 6.0], 3.0, 0.5, 10), [1.0, 6.0])
    assert read_result(tmp_path) is None
    result.write(tmp_path)
    assert read_result(tmp_path) == result
    document = json.loads((tmp_path / RESULT_FILE).read_text())
    (tmp_path / RESULT_FILE).write_text(json.dumps(document | {"rate": 1.0}))
    with pytest.raises(ValueError, match="digest"):
        read_result(tmp_path)


def test_rows_fit_80_columns() -> None:
    result = result_of(serial_windows([1.0, 6.0], 3.0, 0.5, 10), [1.0, 6.0])
    result.effects[0].place = "a_very_long_script_name.py:1234 in AVeryLongClass.its_method"
    for row in rendering.rows(result):
        widths = [max(len(a), len(b)) for a, b in zip(row, rendering.HEADINGS, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80


def test_places_blocked_for_an_unknown_reason_are_not_measured() -> None:
    windows = serial_windows([1.0, 6.0], 3.0, 0.5, 10)
    times = sampled(windows, [1.0, 6.0])
    for activity, time in times.items():
        if activity.own_line == SLOW:
            time.unknown_ns = time.cpu_ns
    units = sum(window.progress for window in windows)
    result = measured([FAST, SLOW], windows, times, 1e9, units, LOOP, 0.2, excludes_queues=True)
    assert [effect.place for effect in result.effects] == ["a.py:3 in fast"]
    assert result.notes[0].startswith("a.py:4 in slow can't be delayed")
