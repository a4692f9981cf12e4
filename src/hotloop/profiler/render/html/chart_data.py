"""Data of the page's charts, thinned so that the page of a long run stays small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.profiler.diagnose.evidence import short_path
from hotloop.profiler.render.flame_svg import PlacedFrame, frame_class, place_frames
from hotloop.profiler.render.phrases import place_text
from hotloop.profiler.session import (
    Frame,
    ProfiledProcess,
    Session,
    enclosing_function,
    is_library,
)
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.memory import memory_series
from hotloop.profiler.session.stages import STAGE_BY_SPAN, STAGES, CodeLine, stage_by_key
from hotloop.profiler.session.throughput import Throughput
from hotloop.timing.reader import EVENT, SpanPath

# About 2 MB.
MAX_EVENTS = 100_000
# Latest events kept of each process, even if it ended early.
MIN_EVENTS_EACH = 200
# Maximum number of periods of all processes.
MAX_PERIODS = 20_000
MAX_BINS = 120
# Smaller frames of the flame graph are narrower than a pixel.
MIN_FRAME_SHARE, MAX_FRAMES = 4e-4, 12_000
# Colors of the processes' lines, by name of the page's colors.
LINE_COLORS = ("env", "update", "act", "replay", "logging", "config", "import", "other")

_STAGES = list(STAGES)


def timeline(session: Session, places: Sequence[Sequence[CodeLine]] = ()) -> dict[str, Any]:
    """Return the timelines of all processes, in nanoseconds since the first start.

    Each process has its periods, with the percentage of the main thread's samples in each stage,
    and its latest events by thread. Starts of events are differences from the previous start.

    Args:
        session: the session.
        places: lines of each finding, whose share of the samples is added by process and period.
    """
    since = _since(session)
    limit = max(60, MAX_PERIODS // len(session.processes))
    return {
        "places": [
            {
                "name": place_text(lines[0]) if lines else "",
                "percents": [_place_percents(x, lines[:1], limit) for x in session.processes],
            }
            for lines in places
        ],
        "length": session.end_ns - session.start_ns,
        "stages": [[stage, text] for stage, text in STAGES.items()],
        "processes": [_process(session, process, since, limit) for process in session.processes],
    }


def _process(session: Session, process: ProfiledProcess, since: int, limit: int) -> dict[str, Any]:
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
    """Return the stage of the innermost span that belongs to a stage, empty if none does."""
    return next((STAGE_BY_SPAN[name] for name in reversed(path) if name in STAGE_BY_SPAN), "")


# --- stages over time -----------------------------------------------------------------------------


def period_stages(process: ProfiledProcess, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the stages in the main thread's samples, for about `limit` periods.

    Samples of one stack may belong to several stages, so a stack counts for each stage as often as
    in the whole run. The same is true for a path of spans, if the period has no stacks.

    Returns:
        Ends on CLOCK_MONOTONIC, int64, `(periods,)`; percentages, int64, `(periods, stages)`.
    """
    periods = process.periods
    by_stack, by_path = _stage_shares(process)
    rows = np.zeros((len(periods), len(_STAGES)))
    for number, period in enumerate(periods):
        if period.by_stack:
            counts = np.fromiter(period.by_stack.values(), np.float64)
            rows[number] = counts @ by_stack[list(period.by_stack)]
            continue
        for path, count in period.by_path.items():
            shares = by_path.get(path)
            rows[number] += count * (_path_shares(path) if shares is None else shares)
    ends = np.array([period.end_ns for period in periods], np.int64)
    step = -(-len(periods) // limit)
    if step > 1:
        first = np.arange(0, len(periods), step)
        rows = np.add.reduceat(rows, first, axis=0)
        ends = ends[np.minimum(first + step, len(periods)) - 1]
    totals = rows.sum(1, keepdims=True)
    return ends, np.rint(100 * rows / np.where(totals, totals, 1)).astype(np.int64)


def _stage_shares(process: ProfiledProcess) -> tuple[np.ndarray, dict[tuple[str, ...], np.ndarray]]:
    """Return the shares of the stages in the main thread's samples, by stack and by path."""
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


def _path_shares(path: tuple[str, ...]) -> np.ndarray:
    row = np.zeros(len(_STAGES))
    row[_STAGES.index(stage_of_path(path) or "other")] = 1.0
    return row


def _place_percents(
    process: ProfiledProcess, lines: Sequence[CodeLine], limit: int
) -> list[int] | None:
    """Return by period the percentage of a process's samples at some lines, None if all are 0."""
    places = {(line.file, line.line) for line in lines}
    stacks = [
        any((frame.file, line) in places for frame, line in zip(*stack, strict=True))
        for stack in process.stacks
    ]
    if not any(stacks):
        return None
    counts = np.array(
        [
            (
                sum(count for stack, count in period.by_stack.items() if stacks[stack]),
                sum(period.by_stack.values()),
            )
            for period in process.periods
        ],
        np.float64,
    ).reshape(-1, 2)
    step = -(-len(counts) // limit)
    if step > 1:
        counts = np.add.reduceat(counts, np.arange(0, len(counts), step), axis=0)
    matched, totals = counts.T
    return np.rint(100 * matched / np.where(totals, totals, 1)).astype(np.int64).tolist()


# --- events ---------------------------------------------------------------------------------------


def _since(session: Session) -> int:
    """Return the start of the time range whose events of all processes fit into the page."""
    ends = np.concatenate([process.events["end_ns"] for process in session.processes])
    if len(ends) <= MAX_EVENTS:
        return session.start_ns
    first = len(ends) - MAX_EVENTS
    return int(np.partition(ends, first)[first])


def _lanes(
    process: ProfiledProcess, since: int, start_ns: int, places: dict[tuple[str, ...], int]
) -> list[dict[str, Any]]:
    """Return the latest events, one lane per thread. Paths are numbered in `places`."""
    latest = process.events
    num_recent = len(latest) - int(np.searchsorted(latest["end_ns"], since))
    events = latest[len(latest) - max(num_recent, min(len(latest), MIN_EVENTS_EACH)) :]
    spans: list[SpanPath] = list(process.spans)
    open_events = np.zeros(len(process.open_spans), EVENT)
    for row, span in zip(open_events, process.open_spans, strict=True):
        # An open span ends with its process.
        row["start_ns"], row["end_ns"] = span.start_ns, max(span.start_ns, process.end_ns)
        row["span"], row["thread"], row["depth"] = len(spans), span.thread, len(span.path)
        spans.append(SpanPath(span.path, span.kind, span.thread))
    events = np.concatenate((events, open_events))
    lanes: list[dict[str, Any]] = []
    for thread in np.unique(events["thread"]).tolist():
        rows = events[events["thread"] == thread]
        rows = rows[np.lexsort((-rows["end_ns"], rows["start_ns"]))]
        starts = rows["start_ns"] - start_ns
        names = process.span_threads[thread : thread + 1]
        lanes.append(
            {
                "thread": names[0].name if names else "",
                "depth": int(rows["depth"].max(initial=1)),
                "starts": np.diff(starts, prepend=0).tolist(),
                "durations": (rows["end_ns"] - rows["start_ns"]).tolist(),
                "spans": [
                    places.setdefault(spans[span].path, len(places))
                    for span in rows["span"].tolist()
                ],
            }
        )
    return lanes


# --- over time ------------------------------------------------------------------------------------


def throughput_line(session: Session, throughput: Throughput) -> dict[str, list[float]]:
    """Return the steps per second at the middle of each bin."""
    edges = np.concatenate(([throughput.start_ns], throughput.end_ns)) - session.start_ns
    middle = (edges[1:] + edges[:-1]) // 2
    return {"at": middle.tolist(), "values": [float(f"{rate:.4g}") for rate in throughput.per_s]}


def memory_lines(session: Session) -> list[dict[str, Any]]:
    """Return the memory of the largest processes over time, in MB."""
    series = [(process, *memory_series(process)) for process in session.processes]
    series = [item for item in series if len(item[1])]
    series.sort(key=lambda item: -item[2].max())
    lines: list[dict[str, Any]] = []
    for number, (process, seconds, sizes) in enumerate(series[: len(LINE_COLORS)]):
        step = -(-len(seconds) // MAX_BINS)
        at = (process.start_ns - session.start_ns + seconds * 1e9).astype(np.int64)
        indices = np.unique(np.append(np.arange(0, len(seconds), step), len(seconds) - 1))
        lines.append(
            {
                "name": process.name,
                "color": LINE_COLORS[number],
                "from": process.start_ns - session.start_ns,
                "at": at[indices].tolist(),
                "values": np.rint(sizes[indices] / 1e6).astype(np.int64).tolist(),
            }
        )
    return lines


# --- the flame graph ------------------------------------------------------------------------------


def flame_graph(
    stacks: Mapping[tuple[Frame, ...], int], anchors: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    """Return the tree of a flame graph: its frames, and its nodes in depth-first order.

    Args:
        stacks: nanoseconds by stack.
        anchors: anchors of the listings by file and function.
    """
    placed = _limited_frames(stacks)
    numbers: dict[tuple[Frame, str], int] = {}
    nodes = [
        (numbers.setdefault((x.frame, frame_class(x.frame, x.depth)), len(numbers)), x.depth, x)
        for x in placed
    ]
    return {
        "frames": [_frame(frame, kind, anchors) for frame, kind in numbers],
        "nodes": {
            "frame": [number for number, _, _ in nodes],
            "depth": [depth for _, depth, _ in nodes],
            "ns": [item.weight for _, _, item in nodes],
        },
    }


def flame_comparison(
    before: Mapping[tuple[Frame, ...], int],
    after: Mapping[tuple[Frame, ...], int],
    sizes: Sequence[float],
) -> dict[str, Any]:
    """Return the tree of two flame graphs, with the times per unit of work in both.

    Args:
        before, after: nanoseconds by stack.
        sizes: units of work in each of them.
    """
    # First lines of functions and the directory of your code differ between versions.
    sides: list[dict[tuple[Frame, ...], float]] = [{}, {}]
    whole: dict[tuple[Frame, ...], int] = {}
    for side, stacks, size in zip(sides, (before, after), sizes, strict=True):
        for stack, weight in stacks.items():
            moved = tuple(map(_without_place, stack))
            ns = weight / max(size, 1e-9)
            whole[moved] = whole.get(moved, 0) + round(1000 * ns)
            for depth in range(1, len(moved) + 1):
                side[moved[:depth]] = side.get(moved[:depth], 0.0) + ns
    graph = flame_graph(whole, {})
    prefix: list[Frame] = []
    columns: list[list[int]] = [[], []]
    for item in _limited_frames(whole):
        prefix[item.depth - 1 :] = [item.frame]
        for side, column in zip(sides, columns, strict=True):
            column.append(round(side.get(tuple(prefix), 0.0)))
    graph["nodes"]["ns"], graph["before"] = columns[1], columns[0]
    return graph


def _without_place(frame: Frame) -> Frame:
    file = frame.file if is_library(frame) else short_path(frame.file)
    return Frame(frame.function, file, 0)


def _limited_frames(stacks: Mapping[tuple[Frame, ...], int]) -> list[PlacedFrame]:
    """Return the frames of a flame graph without "all", and without many small ones."""
    min_share = MIN_FRAME_SHARE
    while len(placed := place_frames(stacks, min_share)) > MAX_FRAMES:
        min_share *= 2
    return placed[1:]


def _frame(frame: Frame, kind: str, anchors: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "function": frame.function,
        "file": frame.file,
        "place": short_path(frame.file) + (f":{frame.first_line}" if frame.first_line else ""),
        "kind": kind,
    }
    anchor = anchors.get((frame.file, enclosing_function(frame.function)))
    return fields | ({"anchor": anchor} if anchor else {})


def lockstep_line(session: Session, waste: LockstepWaste) -> dict[str, list[Any]]:
    """Return the percentage of the workers' time spent waiting, by time bin, None without steps."""
    first, last = int(waste.start_ns[0]), int(waste.end_ns[-1])
    bins = min(MAX_BINS, waste.num_steps)
    number = (waste.end_ns - first) * bins // (last - first + 1)
    waste_ns = np.bincount(number, waste.waste_ns, bins)
    total_ns = waste_ns + np.bincount(number, waste.busy_ns, bins)
    percents = 100 * waste_ns / np.where(total_ns, total_ns, 1)
    middle = first - session.start_ns + ((np.arange(bins) + 0.5) * (last - first) / bins)
    return {
        "at": middle.astype(np.int64).tolist(),
        "values": [
            round(value, 1) if total else None
            for value, total in zip(percents.tolist(), total_ns, strict=True)
        ],
    }
