"""Memory of processes over time, and whether it keeps growing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop.base.statistics import Floats
from hotloop.profiler.session import ProfiledProcess

# Importing, building networks and the first batches take memory once: this part is left out.
_START_SHARE = 0.33
_BINS = 8
# Shorter series and smaller growth occur in healthy programs: caches, allocators, first batches.
_MIN_SECONDS, _MIN_BYTES, _MIN_RATIO = 10.0, 100_000_000, 1.2
# A late import or the first evaluation is one jump. A leak grows in all bins.
_MAX_BIN_SHARE = 0.4
# A bin may be this much smaller than the one before, since allocators give memory back.
_DIP = 0.01
# The last quarter grows at least this fast, compared with the whole: growth has not ended.
_LATE_SHARE = 0.4


class MemoryGrowth(NamedTuple):
    """Growth of a process's memory that goes on until its end.

    Attributes:
        first_bytes, last_bytes: resident memory after the start, and at the end.
        bytes_per_s: mean growth.
    """

    first_bytes: int
    last_bytes: int
    bytes_per_s: float


def memory_series(process: ProfiledProcess) -> tuple[Floats, Floats]:
    """Return times, in seconds since the process's start, and its resident bytes."""
    periods = [period for period in process.periods if period.resident_bytes > 0]
    seconds = [(period.end_ns - process.start_ns) / 1e9 for period in periods]
    sizes = [period.resident_bytes for period in periods]
    return np.array(seconds, np.float64), np.array(sizes, np.float64)


def memory_growth(process: ProfiledProcess) -> MemoryGrowth | None:
    """Return the growth of a process's memory, None if it is small, levels off or falls again."""
    seconds, sizes = memory_series(process)
    if len(sizes) < 2 * _BINS:
        return None
    if sizes[-1] < sizes[-2]:  # freed when the process ended
        seconds, sizes = seconds[:-1], sizes[:-1]
    is_late = seconds >= seconds[0] + _START_SHARE * (seconds[-1] - seconds[0])
    seconds, sizes = seconds[is_late], sizes[is_late]
    length_s = float(seconds[-1] - seconds[0])
    if len(sizes) < _BINS or length_s < _MIN_SECONDS:
        return None
    bins = np.array([part.mean() for part in np.array_split(sizes, _BINS)])
    growth = sizes[-1] - sizes[0]
    late = bins[-1] - bins[-3]
    if (
        growth < _MIN_BYTES
        or sizes[-1] < _MIN_RATIO * sizes[0]
        or (bins[1:] < (1 - _DIP) * bins[:-1]).any()
        or np.diff(bins).max() > _MAX_BIN_SHARE * (bins[-1] - bins[0])
        or late < _LATE_SHARE * (bins[-1] - bins[0]) * 2 / (_BINS - 1)
    ):
        return None
    return MemoryGrowth(int(sizes[0]), int(sizes[-1]), float(growth) / length_s)
