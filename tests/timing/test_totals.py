"""The quick totals agree with a complete reading, with both recorders."""

from __future__ import annotations

import threading

import pytest

from hotloop import timing
from hotloop.timing import _format as f


def tree_counts() -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    return {
        (path, node.kind): (node.count, node.open) for path, node in timing.current().tree().walk()
    }


def total_counts() -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    return {(total.path, total.kind): (total.count, total.open) for total in timing.totals()}


@pytest.mark.parametrize(
    "loops",
    [
        0,
        1,
        f.PERIOD // 2,
        f.PERIOD // 2 + 1,
        3 * f.MAIN.ring_capacity,
        3 * f.MAIN.ring_capacity + 1,
    ],
)
def test_counts_and_times(span, loops: int) -> None:
    for _ in range(loops):
        with span("a"), span("b", "wait"):
            pass
    assert total_counts() == tree_counts()
    tree = timing.current().tree()
    for total in timing.totals():
        assert total.total_ns == pytest.approx(
            tree.find(*total.path).total_ns, abs=2 * total.count + 2
        )


def test_open_spans_and_threads(span) -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with span("a"), span("other"):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    with span("a"):
        pass
    with span("a"), span("b"):
        counts = total_counts()
        assert counts == tree_counts()
        (outer,) = [total for total in timing.totals() if total.path == ("a",)]
    assert counts[("a",), "work"] == (1, 2)
    assert outer.total_ns > 0
    leave.set()
    thread.join()
    assert total_counts() == tree_counts()
    assert {total.open for total in timing.totals()} == {0}
    assert [total.path for total in timing.totals()] == [("a",), ("a", "b"), ("a", "other")]


def test_no_spans_give_no_totals(span) -> None:
    assert timing.totals() == []
