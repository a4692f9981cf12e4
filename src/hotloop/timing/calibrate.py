"""Measurement of the overhead of recording."""

from __future__ import annotations

import time

from hotloop.timing import _control
from hotloop.timing._writer import Recorder
from hotloop.timing.reader import Recording

_BUDGET_NS = 15_000_000
_LOOPS = 500
_overhead_ns: float | None = None


def overhead() -> float:
    """Return the nanoseconds that one `with span("x"): pass` takes on this machine.

    The first call measures for 15 ms: the median over about 30 loops, each minus an empty loop. The
    spans are recorded in separate memory, so the recording of this process does not change.
    """
    global _overhead_ns
    if _overhead_ns is None:
        _overhead_ns = _measure()
    return _overhead_ns


def _measure() -> float:
    span, clock = _control.backend.span, time.perf_counter_ns
    scratch = Recorder(None, "overhead", _control.backend.FLAGS)
    segment = scratch.acquire_segment()
    segment.state = _control.backend.RecorderState(segment)
    recorder = _control.recorder()
    previous = _control.backend.exchange(segment.state)
    costs: list[float] = []
    try:
        with span("x"):  # creates the node, which is slow and happens once
            pass
        deadline = clock() + _BUDGET_NS
        while clock() < deadline or len(costs) < 3:
            start = clock()
            for _ in range(_LOOPS):
                with span("x"):
                    pass
            middle = clock()
            for _ in range(_LOOPS):
                pass
            costs.append((2 * middle - start - clock()) / _LOOPS)
    finally:
        _control.backend.exchange(previous if _control.recorder() is recorder else None)
        scratch.abandon()
    costs.sort()
    return max(0.0, costs[len(costs) // 2])


def cost_share(recording: Recording, span_ns: float | None = None) -> float:
    """Return an estimate of the share of its threads' time that a process spent on recording.

    Args:
        recording: the recording of the process.
        span_ns: cost of one span in ns. Default: `overhead()`.
    """
    lived_ns = sum(thread.lived_ns for thread in recording.threads)
    cost_ns = recording.num_spans * (overhead() if span_ns is None else span_ns)
    return cost_ns / lived_ns if lived_ns else 0.0
