"""Overhead of one span, compared with other ways to time a scope.

    python -m bench timing

Each way runs in its own process. The rounds alternate, so that other load on the machine affects
all ways alike. The figure is nanoseconds for one `with …("x"): pass` minus an empty loop, as the
median of a process's repeats. Median, minimum and maximum over the rounds are stored.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import storage
from bench.markdown import table

LOOPS, REPEATS = 50_000, 9


def _spans(directory: str) -> Callable[[str], Any]:
    from hotloop import timing

    timing.start(directory)
    return timing.span


def _contextmanager(_: str) -> Callable[[str], Any]:
    from contextlib import contextmanager

    totals: dict[str, float] = {}

    @contextmanager
    def scope(name: str) -> Any:
        start = time.perf_counter()
        try:
            yield
        finally:
            totals[name] = totals.get(name, 0.0) + time.perf_counter() - start

    return scope


def _reused_object(_: str) -> Callable[[str], Any]:
    class Scope:
        """A sum of durations without nesting, threads, percentiles or a file."""

        total = 0.0
        start = 0.0

        def __enter__(self) -> None:
            self.start = time.perf_counter()

        def __exit__(self, *_: object) -> None:
            self.total += time.perf_counter() - self.start

    scopes = {"x": Scope()}
    return lambda name: scopes[name]


def _timing_class(_: str) -> Callable[[str], Any]:
    from hotloop.timing import Timing

    return Timing().add_time


def _sample_factory(_: str) -> Callable[[str], Any]:
    from sample_factory.utils.timing import Timing  # pyright: ignore[reportMissingImports]

    return Timing().add_time


WAYS: dict[str, tuple[str, Callable[[str], Callable[[str], Any]], dict[str, str]]] = {
    "c": ("hotloop span, C extension", _spans, {}),
    "python": ("hotloop span, pure Python", _spans, {"HOTLOOP_PURE_TIMING": "1"}),
    "timing_class": ("hotloop Timing.add_time", _timing_class, {}),
    "contextmanager": ("contextlib.contextmanager + perf_counter", _contextmanager, {}),
    "reused_object": ("one reused object + perf_counter", _reused_object, {}),
    "sample_factory": ("Sample Factory Timing.add_time", _sample_factory, {}),
}


def measure(way: str) -> float | None:
    """Return the median ns per scope in this process, or None if a library is missing."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            scope = WAYS[way][1](directory)
        except ImportError:
            return None
        if way == "c":
            from hotloop.timing import current

            if current().recorder != "c":
                return None
        costs = []
        clock, loop = time.perf_counter_ns, range(LOOPS)
        for _ in range(REPEATS):
            first = clock()
            for _ in loop:
                with scope("x"):
                    pass
            second = clock()
            for _ in loop:
                pass
            costs.append((2 * second - first - clock()) / LOOPS)
        return statistics.median(costs)


def _in_process(way: str) -> float | None:
    env = {k: v for k, v in os.environ.items() if k != "HOTLOOP_PURE_TIMING"} | WAYS[way][2]
    command = [sys.executable, "-m", "bench", "timing", "--measure", way]
    completed = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def timing_table() -> str:
    """Return a table with one row per way to time a scope."""
    rows = [["one scope", "ns, median of rounds (range)"]]
    for way in storage.load("timing")["ways"].values():
        if way["ns"] is not None:
            spread = f"{way['min_ns']:,.0f}–{way['max_ns']:,.0f}"
            rows.append([way["about"], f"{way['ns']:,.0f} ({spread})"])
    return table(*rows)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench timing", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--measure", choices=WAYS, help="measure one way in this process")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return 0
    rounds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way in WAYS:
            cost = _in_process(way)
            if cost is not None:
                rounds[way].append(cost)
    ways: dict[str, Any] = {}
    print(f"{'ns a scope':44} {'median':>8} {'min':>8} {'max':>8}")
    for way, costs in rounds.items():
        label = WAYS[way][0]
        if not costs:
            print(f"{label:44} not installed")
            ways[way] = {"about": label, "ns": None}
            continue
        median, low, high = statistics.median(costs), min(costs), max(costs)
        print(f"{label:44} {median:8.0f} {low:8.0f} {high:8.0f}")
        ways[way] = {
            "about": label,
            "ns": round(median, 1),
            "min_ns": round(low, 1),
            "max_ns": round(high, 1),
        }
    path = storage.save(
        "timing", {"rounds": arguments.rounds, "loops": LOOPS, "repeats": REPEATS, "ways": ways}
    )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
