"""Data of the page's pictures, thinned so that a long run's page stays small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.stages import OF_SPAN, STAGES, stage_by_key
from hotloop.profiler.session.throughput import Throughput
from hotloop.timing.reader import EVENT, Place

# Some 2 MB.
MAX_EVENTS = 100_000
# The latest events of each process are kept, however early it ended.
MIN_EVENTS_EACH = 200
# Periods of all processes.
MAX_PERIODS = 20_000
MAX_BINS = 120

_STAGES = list(STAGES)


def timeline(session: Session) -> dict[str, Any]:
    """All processes from the first one's start on, in nanoseconds.

    Of each its periods, with the percentage of the main thread's samples in each stage, and its
    latest events by thread. Starts of events are told as differences from the one before.
    """
    since = _since(session)
    limit = max(60, MAX_PERIODS // len(session.processes))
    return {
        "length": session.end_ns - session.start_ns,
        "stages": [[stage, text] for stage, text in STAGES.items()],
        "processes": [_process(session, one, since, limit) for one in session.processes],
    }


def _process(session: Session, process: Process, since: int, limit: int) -> dict[str, Any]:
    ends, percents = period_stages(process, limit)
    places: dict[tuple[str, ...], int] = {}
    lanes = _lanes(process, since, session.start_ns, places)
    return {
        "name": process.name,
        "pid": process.pid,
        "killed": process.state == "killed",
        "from": process.start_ns - session.start_ns,
        "to": process.end_ns - session.start_ns,
        "ends": (ends - session.start_ns).tolist(),
        "percents": percents.tolist(),
        "spans": [[list(path), stage_of_path(path)] for path in places],
        "lanes": lanes,
    }


def stage_of_path(path: Sequence[str]) -> str:
    """The stage of the innermost span that belongs to one; empty where none does."""
    return next((OF_SPAN[name] for name in reversed(path) if name in OF_SPAN), "")


# --- stages over time -----------------------------------------------------------------------------


def period_stages(process: Process, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """What the main thread did in each period: about `limit` of them at most.

    Which stage a stack belongs to, or a path of spans where stacks were not kept by period, may
    differ from sample to sample: it counts for each as often as in the whole run.

    Returns:
        Ends, int64, (periods,), CLOCK_MONOTONIC, and percentages, int64, (periods, stages).
    """
    periods = process.periods
    by_stack, by_path = _mixes(process)
    rows = np.zeros((len(periods), len(_STAGES)))
    for number, period in enumerate(periods):
        if period.by_stack:
            counts = np.fromiter(period.by_stack.values(), np.float64)
            rows[number] = counts @ by_stack[list(period.by_stack)]
            continue
        for path, count in period.by_path.items():
            known = by_path.get(path)
            rows[number] += count * (_of_path(path) if known is None else known)
    ends = np.array([period.end_ns for period in periods], np.int64)
    step = -(-len(periods) // limit)
    if step > 1:
        first = np.arange(0, len(periods), step)
        rows = np.add.reduceat(rows, first, axis=0)
        ends = ends[np.minimum(first + step, len(periods)) - 1]
    totals = rows.sum(1, keepdims=True)
    return ends, np.rint(100 * rows / np.where(totals, totals, 1)).astype(np.int64)


def _mixes(process: Process) -> tuple[np.ndarray, dict[tuple[str, ...], np.ndarray]]:
    """Shares of the stages among the main thread's samples: of each stack, and by path."""
    by_stack = np.zeros((len(process.stacks), len(_STAGES)))
    by_path: dict[tuple[str, ...], np.ndarray] = {}
    stages = stage_by_key(process)
    for sample in process.samples:
        if sample.thread == process.pid and sample.count:
            stage = _STAGES.index(stages[sample.path, sample.stack])
            by_stack[sample.stack, stage] += sample.count
            by_path.setdefault(sample.path, np.zeros(len(_STAGES)))[stage] += sample.count
    totals = by_stack.sum(1, keepdims=True)
    by_stack /= np.where(totals, totals, 1)
    return by_stack, {path: row / row.sum() for path, row in by_path.items()}


def _of_path(path: tuple[str, ...]) -> np.ndarray:
    row = np.zeros(len(_STAGES))
    row[_STAGES.index(stage_of_path(path) or "other")] = 1.0
    return row


# --- events ---------------------------------------------------------------------------------------


def _since(session: Session) -> int:
    """The time from which on there is room for the events of all processes."""
    ends = np.concatenate([process.events["end_ns"] for process in session.processes])
    if len(ends) <= MAX_EVENTS:
        return session.start_ns
    first = len(ends) - MAX_EVENTS
    return int(np.partition(ends, first)[first])


def _lanes(
    process: Process, since: int, start_ns: int, places: dict[tuple[str, ...], int]
) -> list[dict[str, Any]]:
    """The latest events, one lane a thread; paths are numbered in `places`."""
    latest = process.events
    kept = len(latest) - int(np.searchsorted(latest["end_ns"], since))
    events = latest[len(latest) - max(kept, min(len(latest), MIN_EVENTS_EACH)) :]
    spans: list[Place] = list(process.spans)
    still = np.zeros(len(process.open_spans), EVENT)
    for row, one in zip(still, process.open_spans, strict=True):
        # What it was in when it ended.
        row["start_ns"], row["end_ns"] = one.start_ns, max(one.start_ns, process.end_ns)
        row["span"], row["thread"], row["depth"] = len(spans), one.thread, len(one.path)
        spans.append(Place(one.path, one.kind, one.thread))
    events = np.concatenate((events, still))
    lanes: list[dict[str, Any]] = []
    for thread in np.unique(events["thread"]).tolist():
        own = events[events["thread"] == thread]
        own = own[np.lexsort((-own["end_ns"], own["start_ns"]))]
        starts = own["start_ns"] - start_ns
        known = process.span_threads[thread : thread + 1]
        lanes.append(
            {
                "thread": known[0].name if known else "",
                "depth": int(own["depth"].max(initial=1)),
                "starts": np.diff(starts, prepend=0).tolist(),
                "durations": (own["end_ns"] - own["start_ns"]).tolist(),
                "spans": [
                    places.setdefault(spans[span].path, len(places))
                    for span in own["span"].tolist()
                ],
            }
        )
    return lanes


# --- over time ------------------------------------------------------------------------------------


def throughput_line(session: Session, found: Throughput) -> dict[str, list[float]]:
    """Steps a second at the middle of each bin."""
    edges = np.concatenate(([found.start_ns], found.end_ns)) - session.start_ns
    middle = (edges[1:] + edges[:-1]) // 2
    return {"at": middle.tolist(), "values": [float(f"{one:.4g}") for one in found.per_s]}


def lockstep_line(session: Session, found: LockstepWaste) -> dict[str, list[Any]]:
    """The percentage of workers' time that was waste, by bins in time; None: without steps."""
    first, last = int(found.start_ns[0]), int(found.end_ns[-1])
    bins = min(MAX_BINS, found.num_steps)
    number = (found.end_ns - first) * bins // (last - first + 1)
    waste = np.bincount(number, found.waste_ns, bins)
    whole = waste + np.bincount(number, found.busy_ns, bins)
    percents = 100 * waste / np.where(whole, whole, 1)
    middle = first - session.start_ns + ((np.arange(bins) + 0.5) * (last - first) / bins)
    return {
        "at": middle.astype(np.int64).tolist(),
        "values": [
            round(one, 1) if some else None
            for one, some in zip(percents.tolist(), whole, strict=True)
        ],
    }
