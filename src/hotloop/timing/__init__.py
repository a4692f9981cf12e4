"""Always-on timing: a tree of the time that a program spends in named spans.

    from hotloop import timing
    from hotloop.timing import span

    timing.start("runs/one/timing", component="learner")  # optional: a file that survives a kill
    with span("iteration"):
        with span("env_step"):
            ...
        with span("wait_for_batch", kind="wait"):
            ...
    print(timing.report())

Spans nest. Each path of nested spans is a node with its count, total, extremes and percentiles. A
span costs about 0.1 µs (0.7 µs without the C extension), so spans can stay in the code. Before
`start()` they are recorded in memory. `read(path).tree()` reads a file while it is written, or
after its process was killed.

Each thread has its own stack of open spans. A span ends at the latest with the span around it: if
a span exits out of order, the spans inside it end with it, and their own exits do nothing. Don't
hold a span across an `await` or a `yield`, because it would include the time of other tasks. An
object that `span()` returns belongs to the thread that called `span()`.
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
    from hotloop.timing.reader import (
        Recording,
        RecordingError,
        current,
        read,
        read_directory,
    )
    from hotloop.timing.sample_factory import Timing
    from hotloop.timing.table import render, renderable, report
    from hotloop.timing.tree import Node, SpanCost, costliest, merge

    def span(name: str, kind: Kind = "work") -> Span:
        """Time a block of code: `with span("env_step"):`, or `@span("step")` above a function.

        Args:
            name: one of a small set of names, because each node of the tree takes 2.7 kB.
            kind: "work", "wait" for another process or a device, or "transfer" of bytes.
        Raises:
            TypeError: `name` is not a string.
            ValueError: `kind` does not exist.
        """
        ...
else:
    span = _backend.span

__all__ = [
    "KINDS",
    "Kind",
    "Node",
    "Recording",
    "RecordingError",
    "Span",
    "SpanCost",
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

# The readers import numpy and rich, so a process that only records does not load them.
_LAZY = {
    "Span": "_span",
    "cost_share": "calibrate",
    "overhead": "calibrate",
    "Timing": "sample_factory",
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
    "Node": "tree",
    "SpanCost": "tree",
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
