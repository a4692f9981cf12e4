"""What is looked at every second says what a whole reading does; both recorders."""

from __future__ import annotations

import threading

import pytest

from hotloop import timing
from hotloop.timing import _format as f


def of_tree() -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    return {
        (path, node.kind): (node.count, node.open) for path, node in timing.current().tree().walk()
    }


def in_short() -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    return {(one.path, one.kind): (one.count, one.open) for one in timing.totals()}


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
    assert in_short() == of_tree()
    tree = timing.current().tree()
    for one in timing.totals():
        assert one.total_ns == pytest.approx(tree.find(*one.path).total_ns, abs=2 * one.count + 2)


def test_open_ones_and_threads(span) -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with span("a"), span("other"):
            inside.set()
            leave.wait()

    one = threading.Thread(target=work)
    one.start()
    inside.wait()
    with span("a"):
        pass
    with span("a"), span("b"):
        found = in_short()
        assert found == of_tree()
        (outer,) = [each for each in timing.totals() if each.path == ("a",)]
    assert found[("a",), "work"] == (1, 2)
    assert outer.total_ns > 0
    leave.set()
    one.join()
    assert in_short() == of_tree()
    assert {each.open for each in timing.totals()} == {0}
    assert [each.path for each in timing.totals()] == [("a",), ("a", "b"), ("a", "other")]


def test_nothing(span) -> None:
    assert timing.totals() == []
