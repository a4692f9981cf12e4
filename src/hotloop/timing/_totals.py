"""Totals of the spans of this process so far, for looking every second.

This is imported before it is known whether the program has numpy, and takes it when it is called.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from hotloop.timing import _control
from hotloop.timing import _format as f
from hotloop.timing._format import Kind
from hotloop.timing._writer import Segment

if TYPE_CHECKING:
    import numpy as np


class Total(NamedTuple):
    """All spans of one place in the nesting so far, over all threads of this process."""

    path: tuple[str, ...]
    kind: Kind
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Those that ended."""
    total_ns: int
    """Time inside, that of open ones included."""
    open: int


def totals() -> list[Total]:
    """What `current().tree()` says in short, at a twentieth of its cost: for looking every second.

    Returns:
        Parents before what is within them.
    """
    import numpy as np

    recorder = _control.recorder()
    event = np.dtype(
        [("start", "f8"), ("node", "i8"), ("end", "f8")]
        if recorder.flags & f.FLOAT_TIMES
        else [("start", "i8"), ("node", "i8"), ("end", "i8")]
    )
    scale = 1e9 if recorder.flags & f.FLOAT_TIMES else 1
    found: dict[tuple[tuple[str, ...], Kind], list[int]] = {}
    for segment in list(recorder.segments):
        rows = _totals_of(segment, event, scale)
        for node in range(1, len(rows)):
            kind = f.NODE.unpack_from(segment.buffer, f.SEGMENT_HEAD + node * f.NODE.size)[1]
            sums = found.setdefault((segment.path(node), f.KINDS[kind]), [0, 0, 0])
            for i, value in enumerate(rows[node].tolist()):
                sums[i] += value
    return [Total(path, kind, *sums) for (path, kind), sums in sorted(found.items())]


def _totals_of(segment: Segment, event: np.dtype, scale: float) -> np.ndarray:
    """Of one thread's nodes: count, total ns and open ones, int64, (nodes, 3)."""
    import numpy as np

    layout, words = segment.layout, segment.words
    while True:
        folded, num_nodes = words[f.S_FOLDED], words[f.S_NUM_NODES]
        bank = layout.bank_b if folded & 1 else layout.bank_a
        size = (num_nodes + 1) * f.ROW_WORDS
        rows = np.frombuffer(segment.buffer, np.int64, size, bank).reshape(-1, f.ROW_WORDS)
        sums = np.zeros((num_nodes, 3), np.int64)
        sums[:, 0], sums[:, 1] = rows[1:, f.T_COUNT], rows[1:, f.T_TOTAL]
        floor = int(rows[0, 0])
        first = (folded >> 1) % layout.ring_capacity
        at = layout.ring + first * f.EVENT_SIZE
        ring = np.frombuffer(segment.buffer, event, f.PERIOD, at)
        # NumPy lets other threads run while it copies: of an event that was written meanwhile the
        # start may be an old one. Where the end was there before, the start was.
        committed = ring["end"].copy()
        fresh = ring.copy()
        # The bank that was read is written again only after another fold.
        if words[f.S_FOLDED] == folded:
            break
    is_whole = committed == fresh["end"]
    starts, ends = fresh["start"], fresh["end"]
    if scale != 1:
        starts, ends = np.rint(starts * scale), np.rint(ends * scale)
    nodes = fresh["node"]
    # Slots behind the newest event hold those of a lap ago.
    new = is_whole & (ends >= floor) & (nodes > 0) & (nodes < num_nodes)
    lengths = np.maximum(ends[new] - starts[new], 0).astype(np.float64)
    sums[:, 0] += np.bincount(nodes[new], minlength=num_nodes)
    sums[:, 1] += np.bincount(nodes[new], lengths, num_nodes).astype(np.int64)
    state = segment.state
    if state is not None and words[f.S_STATE] == f.LIVE:
        opens = np.frombuffer(segment.buffer, event["start"], num_nodes, layout.opens)
        now_ns, node = time.monotonic_ns(), state.current()
        while 0 < node < num_nodes:
            sums[node, 1] += max(0, now_ns - round(float(opens[node]) * scale))
            sums[node, 2] += 1
            node = f.NODE.unpack_from(segment.buffer, f.SEGMENT_HEAD + node * f.NODE.size)[0]
    return sums
