"""Memory that keeps growing is named; memory that levels off is not."""

from __future__ import annotations

import pytest

from hotloop.profiler import diagnose
from hotloop.profiler.session.memory import memory_growth
from tests.profiler.sessions import period, process, session

MB = 1_000_000


def megabytes(*sizes: float):
    """Return a process with the given resident memory at the end of each second."""
    return process(
        end_s=len(sizes),
        periods=[period(t, resident=round(size * MB)) for t, size in enumerate(sizes, 1)],
    )


def test_steady_growth():
    growth = memory_growth(megabytes(*(300 + 10 * t for t in range(40))))
    assert growth is not None
    # The first third, of 39 s, is left out.
    assert (growth.first_bytes, growth.last_bytes) == (430 * MB, 690 * MB)
    assert growth.bytes_per_s == pytest.approx(10 * MB)


def test_memory_that_is_freed_at_the_end_was_a_leak():
    growth = memory_growth(megabytes(*(300 + 10 * t for t in range(40)), 20))
    assert growth is not None
    assert growth.last_bytes == 690 * MB


@pytest.mark.parametrize(
    "sizes",
    [
        [min(300 + 30 * t, 700) for t in range(40)],
        [300 + 1.2 * t for t in range(40)],
        [5000 + 10 * t for t in range(40)],
        [300 + 30 * (t % 20) for t in range(40)],
        [300 + 3 * t + 200 * (t > 25) for t in range(40)],
        [300 + 100 * t for t in range(8)],
        [0] * 40,
    ],
    ids=[
        "levels off",
        "little",
        "little of much",
        "falls again",
        "one jump",
        "short",
        "not recorded",
    ],
)
def test_no_growth(sizes):
    assert memory_growth(megabytes(*sizes)) is None


def test_the_finding_names_the_process_and_promises_no_gain():
    example = session(megabytes(*(300 + 10 * t for t in range(40))))
    (banner,) = diagnose.banners(example)
    assert (banner.rule, banner.gain) == ("memory-grows", None)
    assert banner.title == "the memory of main keeps growing"
    assert banner.evidence == ("main grows from 430 MB to 690 MB, 600 MB per minute",)
