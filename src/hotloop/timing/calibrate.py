"""The cost of recording itself."""

from __future__ import annotations

import time

from hotloop.timing import _control
from hotloop.timing._writer import Recorder
from hotloop.timing.reader import Recording

_BUDGET_NS = 15_000_000
_LOOPS = 500
_measured: float | None = None


def overhead() -> float:
    """Nanoseconds that one `with span("x"): pass` costs on this machine, measured once, in 15 ms.

    The median of some 30 loops less that of as many empty ones. What the recording of this process
    holds is not touched: the spans go to memory of their own.
    """
    global _measured
    if _measured is None:
        _measured = _measure()
    return _measured


def _measure() -> float:
    span, clock = _control.backend.span, time.perf_counter_ns
    scratch = Recorder(None, "overhead", _control.backend.FLAGS)
    segment = scratch.lend()
    segment.state = _control.backend.State(segment)
    in_use = _control.recorder()
    previous = _control.backend.exchange(segment.state)
    costs: list[float] = []
    try:
        with span("x"):  # makes the node, which is slow and happens once
            pass
        deadline = clock() + _BUDGET_NS
        while clock() < deadline or len(costs) < 3:
            first = clock()
            for _ in range(_LOOPS):
                with span("x"):
                    pass
            second = clock()
            for _ in range(_LOOPS):
                pass
            costs.append((2 * second - first - clock()) / _LOOPS)
    finally:
        _control.backend.exchange(previous if _control.recorder() is in_use else None)
        scratch.abandon()
    costs.sort()
    return max(0.0, costs[len(costs) // 2])


def cost_share(recording: Recording, span_ns: float | None = None) -> float:
    """The share of its threads' time that a process spent on recording, estimated.

    Args:
        span_ns: what one span costs; `overhead()` if it is not given.
    """
    lived_ns = sum(thread.lived_ns for thread in recording.threads)
    cost_ns = recording.num_spans * (overhead() if span_ns is None else span_ns)
    return cost_ns / lived_ns if lived_ns else 0.0
