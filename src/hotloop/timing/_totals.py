"""Current totals of the spans of this process, cheap enough to read every second.

Programs without NumPy import this module too, so its functions import NumPy when they are called.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from hotloop.timing import _control
from hotloop.timing import _format as fmt
from hotloop.timing._format import Kind
from hotloop.timing._writer import Segment

if TYPE_CHECKING:
    import numpy as np


class Total(NamedTuple):
    """The spans of one path so far, summed over all threads of this process."""

    path: tuple[str, ...]
    kind: Kind
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Number of spans that have ended."""
    total_ns: int
    """Time inside, including open spans."""
    open: int
    """Number of open spans."""


def totals() -> list[Total]:
    """Return the count and time of each path, at a twentieth of the cost of `current().tree()`.

    Returns:
        Totals, parents before their children.
    """
    import numpy as np

    recorder = _control.recorder()
    event = np.dtype(
        [("start", "f8"), ("node", "i8"), ("end", "f8")]
        if recorder.flags & fmt.FLOAT_TIMES
        else [("start", "i8"), ("node", "i8"), ("end", "i8")]
    )
    scale = 1e9 if recorder.flags & fmt.FLOAT_TIMES else 1
    sums_by_path: dict[tuple[tuple[str, ...], Kind], list[int]] = {}
    for segment in list(recorder.segments):
        with np.errstate(invalid="ignore", over="ignore"):  # the file may be damaged
            rows = _segment_totals(segment, event, scale)
        for node in range(1, len(rows)):
            sums = sums_by_path.setdefault((segment.path(node), segment.kinds[node]), [0, 0, 0])
            for i, value in enumerate(rows[node].tolist()):
                sums[i] += value
    return [Total(path, kind, *sums) for (path, kind), sums in sorted(sums_by_path.items())]


def _segment_totals(segment: Segment, event: np.dtype, scale: float) -> np.ndarray:
    """Return count, total ns and number of open spans of each node, int64, (num_nodes, 3)."""
    import numpy as np

    # Read the totals of the last fold and the events since.

    layout, words = segment.layout, segment.words
    while True:
        folded, num_nodes = words[fmt.S_FOLDED], segment.num_nodes
        bank = layout.bank_b if folded & 1 else layout.bank_a
        size = (num_nodes + 1) * fmt.ROW_WORDS
        rows = np.frombuffer(segment.buffer, np.int64, size, bank).reshape(-1, fmt.ROW_WORDS)
        sums = np.zeros((num_nodes, 3), np.int64)
        sums[:, 0], sums[:, 1] = rows[1:, fmt.T_COUNT], rows[1:, fmt.T_TOTAL]
        floor = int(rows[0, 0])
        first = (folded >> 1) % layout.ring_capacity
        offset = layout.ring + first * fmt.EVENT_SIZE
        ring = np.frombuffer(segment.buffer, event, fmt.PERIOD, offset)
        # NumPy lets other threads run while it copies, so an event that is written in between may
        # be copied with an old start. If the end was there before the copy, so was the start.
        committed = ring["end"].copy()
        fresh = ring.copy()
        # The copied bank is only written again after another fold.
        if words[fmt.S_FOLDED] == folded:
            break
    # Add the new events. Slots behind the newest one hold events of the previous lap.
    is_whole = committed == fresh["end"]
    starts, ends = fresh["start"], fresh["end"]
    if scale != 1:
        starts, ends = np.rint(starts * scale), np.rint(ends * scale)
    nodes = fresh["node"]
    is_new = is_whole & (ends >= floor) & (nodes > 0) & (nodes < num_nodes)
    durations = np.maximum(ends[is_new] - starts[is_new], 0).astype(np.float64)
    sums[:, 0] += np.bincount(nodes[is_new], minlength=num_nodes)
    sums[:, 1] += np.bincount(nodes[is_new], durations, num_nodes).astype(np.int64)
    # Add the open spans.
    state = segment.state
    if state is not None and segment.thread is not None:
        opens = np.frombuffer(segment.buffer, event["start"], num_nodes, layout.opens)
        now_ns, node = time.monotonic_ns(), state.current()
        while 0 < node < num_nodes:
            start_ns = float(opens[node]) * scale
            if 0 < start_ns < now_ns:  # else the file is damaged
                sums[node, 1] += now_ns - round(start_ns)
            sums[node, 2] += 1
            node = segment.parents[node]
    return sums
