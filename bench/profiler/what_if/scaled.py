"""Stages of a known length, and the command line of the programs.

    PROGRAM NAME SECONDS [STAGE=FACTOR ...]

A program prints its units of work and the nanoseconds that they took, without the time in which
its only thread queued for a core.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

factors: dict[str, float] = {}


class Program(NamedTuple):
    """A program with known stages.

    Attributes:
        main: runs one unit of work after another, for as long as it may.
        stages: names of the measured functions or spans.
        is_serial: whether a single thread does all of the work.
        progress: name of the function whose calls are the units; empty to let hotloop choose.
    """

    main: Callable[[Iterator[int]], None]
    stages: tuple[str, ...]
    is_serial: bool = True
    progress: str = ""


def compute(stage: str, size: int) -> int:
    """Compute for some 45 ns per unit of size."""
    total = 0
    for i in range(round(size * factors.get(stage, 1.0))):
        total += i * i
    return total


def pause(stage: str, seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds * factors.get(stage, 1.0))


def run(programs: Mapping[str, Program]) -> None:
    """Run the program that the command line names."""
    name, seconds, *scaled = sys.argv[1:]
    factors.update(
        {stage: float(factor) for stage, _, factor in (x.partition("=") for x in scaled)}
    )
    program = programs[name]
    units = 0

    def passes() -> Iterator[int]:
        nonlocal units
        end_s = time.monotonic() + float(seconds)
        while time.monotonic() < end_s:
            yield units
            units += 1

    start_ns, queued_ns = time.monotonic_ns(), _queued_ns()
    program.main(passes())
    duration_ns = time.monotonic_ns() - start_ns
    if program.is_serial:
        duration_ns -= _queued_ns() - queued_ns
    print(json.dumps({"units": units, "duration_ns": duration_ns}), flush=True)


def _queued_ns() -> int:
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1])
