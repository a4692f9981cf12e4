"""Counts and times of spans, by period of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import Process
from hotloop.statistics import Floats

# What is counted as a step of learning, then as one of environments: the first that there is.
UPDATES = ("optimizer_step", "update", "backward")
STEPS = ("vector_step", "env_step", "replay_add")


class Series(NamedTuple):
    """By period.

    Attributes:
        seconds: length of each period, (n,).
        counts: spans that ended in it, (n,).
        total_s: time in them, (n,).
    """

    seconds: Floats
    counts: Floats
    total_s: Floats

    @property
    def before(self) -> Floats:
        """How many had ended by the middle of each period, (n,)."""
        return np.cumsum(self.counts) - self.counts / 2


def series(process: Process, names: Iterable[str]) -> Series:
    """Of spans of some names, those within one another once."""
    names = set(names)
    rows = [(process.start_ns, 0, 0)]
    for period in process.periods:
        count = total = 0
        for path, (number, ns) in period.spans.items():
            if path[-1:] and path[-1] in names and not names.intersection(path[:-1]):
                count += number
                total += ns
        rows.append((period.end_ns, count, total))
    table = np.array(rows, np.float64)
    steps = np.diff(table, axis=0)
    # A program that began another recording counts from zero again.
    steps = np.where(steps < 0, table[1:], steps)
    return Series(steps[:, 0] / 1e9, steps[:, 1], steps[:, 2] / 1e9)


def counted(process: Process, *preferred: tuple[str, ...]) -> tuple[str, Series] | None:
    """The first kind of span that there is, by name, with its series."""
    for names in preferred:
        for name in names:
            found = series(process, [name])
            if found.counts.sum() > 0:
                return name, found
    return None
