"""Concurrent trainings, and trainings beside other load, by number of torch threads.

    python -m bench neighbours

For each number of threads (`auto`, 1, and all cores): one training of SAC alone, two at the same
time, and one beside a process that keeps a core busy, always or half of the time. Each runs in its
own process for a fixed time after all have made their first updates. The figures are transitions
per second, the sum for two trainings.
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
from hotloop.base.cores import available_cores

_TRAIN = """
import signal, sys, time
from hotloop.algorithms import sac
signal.signal(signal.SIGTERM, signal.default_int_handler)
threads, folder = sys.argv[1:]
def print_report(report):
    print(time.monotonic(), report.timesteps, flush=True)
config = sac.Config(
    env_id="HalfCheetah-v5", learning_starts=500, report_interval=50, execution="compile",
    torch_threads="auto" if threads == "auto" else int(threads), runs_dir=folder,
)
sac.train(config, on_report=print_report, progress=False)
"""
_BUSY = """
import sys, time
busy_s, idle_s = map(float, sys.argv[1:])
while True:
    end_s = time.monotonic() + busy_s
    while time.monotonic() < end_s:
        pass
    time.sleep(idle_s)
"""
_PERIOD_S = 0.1  # of a process that is busy for a share of the time
# Number of transitions after which compiled updates run.
_WARM_TIMESTEPS = 700


class Training:
    """A training in its own process, with its reports (time, timesteps)."""

    def __init__(self, threads: str, folder: str) -> None:
        self.reports: list[tuple[float, int]] = []
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
                self.reports.append((float(first), int(last)))

    @property
    def is_warm(self) -> bool:
        """Whether the first updates are over."""
        return bool(self.reports) and self.reports[-1][1] >= _WARM_TIMESTEPS

    def rate(self, begin_s: float) -> float:
        """Return the transitions per second since a time."""
        reports = [x for x in self.reports if x[0] >= begin_s]
        if len(reports) < 2:
            return 0.0
        return (reports[-1][1] - reports[0][1]) / (reports[-1][0] - reports[0][0])


@contextlib.contextmanager
def busy_process(share: float) -> Iterator[None]:
    """Keep one core busy for a share of the time."""
    busy_s, idle_s = _PERIOD_S * share, _PERIOD_S * (1 - share)
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(busy_s), str(idle_s)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(threads: str, *, count: int, busy_share: float, seconds: float) -> float:
    """Return the transitions per second of all trainings, beside a process if it is busy."""
    with contextlib.ExitStack() as exits:
        folder = exits.enter_context(tempfile.TemporaryDirectory())
        if busy_share > 0:
            exits.enter_context(busy_process(busy_share))
        trainings = [Training(threads, folder) for _ in range(count)]
        try:
            while not all(training.is_warm for training in trainings):
                if any(training.process.poll() is not None for training in trainings):
                    raise RuntimeError("a training ended before it was measured")
                time.sleep(0.2)
            begin_s = time.monotonic()
            time.sleep(seconds)
            return sum(training.rate(begin_s) for training in trainings)
        finally:
            for training in trainings:
                training.process.send_signal(signal.SIGTERM)
            for training in trainings:
                training.process.wait()


def neighbours_table() -> str:
    """Return a table with a row per case and a column per number of threads."""
    cases = storage.load("neighbours")["cases"]
    ways = list(next(iter(cases.values())))
    rows = [["transitions/s", *(f"`--torch-threads {way}`" for way in ways)]]
    for case, each in cases.items():
        rows.append([case, *(f"{statistics.median(each[way]):.0f}" for way in ways)])
    return table(*rows)


def main() -> int:
    """Measure all cases in turn."""
    parser = argparse.ArgumentParser(
        prog="python -m bench neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each measurement")
    options = parser.parse_args()
    cases = {
        "alone": {"count": 1, "busy_share": 0.0},
        "two at once": {"count": 2, "busy_share": 0.0},
        "beside a half-busy process": {"count": 1, "busy_share": 0.5},
        "beside a busy process": {"count": 1, "busy_share": 1.0},
    }
    ways = ["auto", "1", str(available_cores())]
    rates: dict[str, dict[str, list[float]]] = {case: {way: [] for way in ways} for case in cases}
    for way in ways:  # fills the compiler's cache
        measure(way, count=1, busy_share=0.0, seconds=1.0)
    for _ in range(options.repeats):
        for case, arguments in cases.items():
            for way in ways:
                rate = measure(way, seconds=options.seconds, **arguments)
                rates[case][way].append(round(rate, 1))
    results: dict[str, Any] = {"seconds": options.seconds, "cases": rates}
    path = storage.save("neighbours", results)
    print(f"{neighbours_table()}\n{path}")
    return 0
