"""Adds events to a thread's totals: what the Python recorder and the reader share."""

from __future__ import annotations

import numpy as np

from hotloop.timing import _format as f


def fold(rows: np.ndarray, nodes: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
    """Add events to `rows`, the totals of each node, in place.

    Args:
        rows: int64, (nodes, ROW_WORDS).
        nodes: index of each event's node, (events,); start_ns, end_ns: int64, same shape.
    """
    if len(nodes) == 0:
        return
    duration = np.maximum(end_ns - start_ns, 0)
    # A stable sort of int16 is a radix sort: 10 µs for 4,096 events, a general one takes 150 µs.
    narrow = nodes.astype(np.int16)
    order = narrow.argsort(kind="stable")
    narrow = narrow[order]
    first = np.concatenate(([0], np.flatnonzero(narrow[1:] != narrow[:-1]) + 1))
    ids = narrow[first]
    by_node = duration[order]
    shortest = np.minimum.reduceat(by_node, first)
    old = rows[ids, : f.T_HIST]
    new = old.copy()
    new[:, f.T_COUNT] += np.diff(first, append=len(nodes))
    new[:, f.T_TOTAL] += np.add.reduceat(by_node, first)
    seen = old[:, f.T_COUNT] > 0
    new[:, f.T_MIN] = np.where(seen, np.minimum(old[:, f.T_MIN], shortest), shortest)
    new[:, f.T_MAX] = np.maximum(old[:, f.T_MAX], np.maximum.reduceat(by_node, first))
    last = np.maximum.reduceat(start_ns[order], first)
    new[:, f.T_LAST_START] = np.maximum(old[:, f.T_LAST_START], last)
    rows[ids, : f.T_HIST] = new
    bucket = duration.astype(np.float64).view(np.int64) >> f.BUCKET_SHIFT
    bucket -= f.BUCKET_BASE
    np.maximum(bucket, 0, out=bucket)
    np.minimum(bucket, f.NUM_BUCKETS - 1, out=bucket)
    bucket += nodes * f.NUM_BUCKETS
    num_rows = int(ids[-1]) + 1
    histogram = np.bincount(bucket, minlength=num_rows * f.NUM_BUCKETS)
    rows[:num_rows, f.T_HIST :] += histogram.reshape(num_rows, f.NUM_BUCKETS)
