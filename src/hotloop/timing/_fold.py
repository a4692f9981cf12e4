"""Addition of events to the totals of nodes, for the Python recorder and the reader."""

from __future__ import annotations

import numpy as np

from hotloop.timing import _format as fmt


def fold(rows: np.ndarray, nodes: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
    """Add events to the totals of their nodes, in place.

    Args:
        rows: totals of each node, int64, (num_nodes, ROW_WORDS).
        nodes: index of each event's node, (num_events,).
        start_ns, end_ns: times of each event, int64, (num_events,).
    """
    if len(nodes) == 0:
        return
    duration = np.maximum(end_ns - start_ns, 0)
    # Sort the events by node. A stable sort of int16 is a radix sort: it takes 10 µs for 4,096
    # events, a general sort 150 µs.
    narrow = nodes.astype(np.int16)
    order = narrow.argsort(kind="stable")
    narrow = narrow[order]
    first = np.concatenate(([0], np.flatnonzero(narrow[1:] != narrow[:-1]) + 1))
    ids = narrow[first]
    sorted_duration = duration[order]
    shortest = np.minimum.reduceat(sorted_duration, first)
    old = rows[ids, : fmt.T_HIST]
    new = old.copy()
    new[:, fmt.T_COUNT] += np.diff(first, append=len(nodes))
    new[:, fmt.T_TOTAL] += np.add.reduceat(sorted_duration, first)
    has_events = old[:, fmt.T_COUNT] > 0
    new[:, fmt.T_MIN] = np.where(has_events, np.minimum(old[:, fmt.T_MIN], shortest), shortest)
    new[:, fmt.T_MAX] = np.maximum(old[:, fmt.T_MAX], np.maximum.reduceat(sorted_duration, first))
    last_start = np.maximum.reduceat(start_ns[order], first)
    new[:, fmt.T_LAST_START] = np.maximum(old[:, fmt.T_LAST_START], last_start)
    rows[ids, : fmt.T_HIST] = new
    # Add to the histograms.
    bucket = duration.astype(np.float64).view(np.int64) >> fmt.BUCKET_SHIFT
    bucket -= fmt.BUCKET_BASE
    np.maximum(bucket, 0, out=bucket)
    np.minimum(bucket, fmt.NUM_BUCKETS - 1, out=bucket)
    bucket += nodes * fmt.NUM_BUCKETS
    num_rows = int(ids[-1]) + 1
    histogram = np.bincount(bucket, minlength=num_rows * fmt.NUM_BUCKETS)
    rows[:num_rows, fmt.T_HIST :] += histogram.reshape(num_rows, fmt.NUM_BUCKETS)
