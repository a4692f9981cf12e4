"""Trainings side by side and beside other work, by threads of an update.

    python -m bench neighbours

For each number of threads (`auto`, 1, and all cores): one training of SAC alone, two at once, and
one beside a process that keeps a core busy. Each runs in a process of its own for a fixed time
after all have made their first updates. Printed and stored: transitions a second, of two at once
together.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench import storage
from bench.markdown import table
from hotloop.system.cores import available_cores

_TRAIN = """
import signal, sys, time
from hotloop.algorithms import sac
signal.signal(signal.SIGTERM, signal.default_int_handler)
threads, folder = sys.argv[1:]
def tell(report):
    print(time.monotonic(), report.timesteps, flush=True)
config = sac.Config(
    env_id="HalfCheetah-v5", learning_starts=500, report_interval=50, execution="compile",
    torch_threads="auto" if threads == "auto" else int(threads), runs_dir=folder,
)
sac.train(config, on_report=tell, progress=False)
"""
_BUSY = "while True: pass"
# Transitions after which compiled updates are running.
_BEGUN = 700


class Training:
    """A training in a process of its own, and what it has told."""

    def __init__(self, threads: str, folder: str) -> None:
        self.told: list[tuple[float, int]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _TRAIN, threads, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, last = line.partition(" ")
            with contextlib.suppress(ValueError):
                self.told.append((float(first), int(last)))

    @property
    def has_begun(self) -> bool:
        """Whether it is past its first updates."""
        return bool(self.told) and self.told[-1][1] >= _BEGUN

    def rate(self, begin_s: float) -> float:
        """Return the transitions a second since then."""
        seen = [x for x in self.told if x[0] >= begin_s]
        if len(seen) < 2:
            return 0.0
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(threads: str, *, count: int, is_busy: bool, seconds: float) -> float:
    """Return the transitions a second that trainings make together."""
    with contextlib.ExitStack() as exits:
        folder = exits.enter_context(tempfile.TemporaryDirectory())
        if is_busy:
            exits.enter_context(busy_process())
        trainings = [Training(threads, folder) for _ in range(count)]
        try:
            while not all(one.has_begun for one in trainings):
                if any(one.process.poll() is not None for one in trainings):
                    raise RuntimeError("a training ended before it was measured")
                time.sleep(0.2)
            begin_s = time.monotonic()
            time.sleep(seconds)
            return sum(one.rate(begin_s) for one in trainings)
        finally:
            for one in trainings:
                one.process.send_signal(signal.SIGTERM)
            for one in trainings:
                one.process.wait()


def neighbours_table() -> str:
    """One row for each way to share the cores, one column for each number of threads."""
    cases = storage.load("neighbours")["cases"]
    ways = list(next(iter(cases.values())))
    rows = [["transitions/s", *(f"`--torch-threads {way}`" for way in ways)]]
    for case, each in cases.items():
        rows.append([case, *(f"{statistics.median(each[way]):.0f}" for way in ways)])
    return table(*rows)


def main() -> int:
    """Measure all of them, in turn."""
    parser = argparse.ArgumentParser(
        prog="python -m bench neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="that each is measured for")
    options = parser.parse_args()
    cases = {
        "alone": {"count": 1, "is_busy": False},
        "two at once": {"count": 2, "is_busy": False},
        "beside a busy process": {"count": 1, "is_busy": True},
    }
    ways = ["auto", "1", str(available_cores())]
    found: dict[str, dict[str, list[float]]] = {case: {way: [] for way in ways} for case in cases}
    for way in ways:  # fills the compiler's cache
        measure(way, count=1, is_busy=False, seconds=1.0)
    for _ in range(options.repeats):
        for case, about in cases.items():
            for way in ways:
                rate = measure(way, seconds=options.seconds, **about)
                found[case][way].append(round(rate, 1))
    results: dict[str, Any] = {"seconds": options.seconds, "cases": found}
    path = storage.save("neighbours", results)
    print(f"{neighbours_table()}\n{path}")
    return 0
