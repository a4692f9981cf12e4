"""Counts and durations of spans, by period of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hotloop.base.statistics import Floats
from hotloop.profiler.session import ProfiledProcess

# Spans that count as learning steps and as environment steps, in order of preference.
UPDATES = ("optimizer_step", "update", "backward")
STEPS = ("vector_step", "env_step", "replay_add")


class SpanSeries(NamedTuple):
    """Spans by period.

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
        """Number of spans that ended before the middle of each period, (n,)."""
        return np.cumsum(self.counts) - self.counts / 2


def span_series(process: ProfiledProcess, names: Iterable[str]) -> SpanSeries:
    """Return the series of all spans with the given names. Nested ones count once."""
    names = set(names)
    rows = [(process.start_ns, 0, 0)]
    for period in process.periods:
        count = total = 0
        for path, (number, ns) in period.spans.items():
            if path[-1:] and path[-1] in names and not names.intersection(path[:-1]):
                count += number
                total += ns
        rows.append((period.end_ns, count, total))
    steps = np.diff(np.array(rows, np.float64), axis=0)
    return SpanSeries(steps[:, 0] / 1e9, steps[:, 1], steps[:, 2] / 1e9)


def first_nonempty_series(
    process: ProfiledProcess, *preferred: tuple[str, ...]
) -> tuple[str, SpanSeries] | None:
    """Return the first preferred name that has spans, and its series."""
    for names in preferred:
        for name in names:
            series = span_series(process, [name])
            if series.counts.sum() > 0:
                return name, series
    return None
