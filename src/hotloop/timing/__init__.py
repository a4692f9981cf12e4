"""Timing that is always on: where the time of a program goes, as a tree.

    from hotloop import timing
    from hotloop.timing import span

    timing.start("runs/one/timing", component="learner")  # optional: a file that outlives a kill
    with span("iteration"):
        with span("env_step"):
            ...
        with span("wait_for_batch", kind="wait"):
            ...
    print(timing.report())

Spans nest; each place in the nesting is a node with its count, total, extremes and percentiles. A
span costs some 0.1 µs (0.7 µs without the C extension), so they can stay in the code. Before
`start()` they are recorded in memory. A file can be read while it is written, and after its process
was killed: `read(path).tree()`.

What is open is known per thread. A span ends at the latest with the span around it: when one is
left out of order, those inside of it end with it, and leaving them later does nothing. So don't
hold a span across an `await` or a `yield`: what other tasks do meanwhile would count as inside it.
An object that `span()` returned belongs to the thread that asked for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.timing._control import backend as _backend
from hotloop.timing._control import open_paths, start, stop
from hotloop.timing._format import KINDS, Kind

if TYPE_CHECKING:
    from hotloop.timing._span import Span
    from hotloop.timing._totals import Total, totals
    from hotloop.timing.calibrate import cost_share, overhead
    from hotloop.timing.keyed import Timing
    from hotloop.timing.reader import (
        Recording,
        RecordingError,
        current,
        read,
        read_directory,
    )
    from hotloop.timing.table import render, renderable, report
    from hotloop.timing.tree import Cost, Node, costliest, merge

    def span(name: str, kind: Kind = "work") -> Span:
        """Time a stretch of code: `with span("env_step"):`, or `@span("step")` above a function.

        Args:
            name: what it is called; from a small set, since each place in the nesting holds 2.7 kB.
            kind: "work", "wait" for another process or a device, or "transfer" of bytes.
        Raises:
            TypeError, ValueError: the name is no string; there is no such kind.
        """
        ...
else:
    span = _backend.span

__all__ = [
    "KINDS",
    "Cost",
    "Kind",
    "Node",
    "Recording",
    "RecordingError",
    "Span",
    "Timing",
    "Total",
    "cost_share",
    "costliest",
    "current",
    "merge",
    "open_paths",
    "overhead",
    "read",
    "read_directory",
    "render",
    "renderable",
    "report",
    "span",
    "start",
    "stop",
    "totals",
]

# The reading half brings numpy and rich, which a process that only records need not load.
_LAZY = {
    "Span": "_span",
    "cost_share": "calibrate",
    "overhead": "calibrate",
    "Timing": "keyed",
    "Recording": "reader",
    "RecordingError": "reader",
    "Total": "_totals",
    "current": "reader",
    "totals": "_totals",
    "read": "reader",
    "read_directory": "reader",
    "render": "table",
    "renderable": "table",
    "report": "table",
    "Cost": "tree",
    "Node": "tree",
    "costliest": "tree",
    "merge": "tree",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"hotloop.timing.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hotloop.timing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
