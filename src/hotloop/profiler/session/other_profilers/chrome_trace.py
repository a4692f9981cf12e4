"""Chrome traces: those of torch.profiler, and JSON for Perfetto of other tracers.

The frames of Python functions become stacks, whose time is that without inner frames. Operations of
torch are frames of a library, and annotations are spans. Kernels become a GPU window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hotloop.profiler.session import Frame
from hotloop.profiler.session.gpu import HOST_SAMPLE, GpuWindow
from hotloop.profiler.session.kineto import device_activity
from hotloop.profiler.session.other_profilers.stacks import (
    MAIN,
    OtherProfile,
    SpanEvent,
    StackSample,
    without_middle,
)
from hotloop.timing._format import MAX_DEPTH

_INTERVAL_NS = 1_000_000
# Torch: `train.py(12): step`. Other tracers: `step (train.py:12)`.
_TORCH_PLACE = re.compile(r"(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)")
_PLACE = re.compile(r"(?P<function>.+) \((?P<file>[^()]+):(?P<line>\d+)\)")
_OPERATIONS = ("cpu_op", "cuda_runtime", "cuda_driver", "Operator", "Runtime")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "Kernel", "Memcpy")
_PROFILER_SPANS = ("Trace", "ac2g", "overhead")


class _Event(NamedTuple):
    """An event with a duration, in nanoseconds of the trace's clock."""

    start_ns: int
    end_ns: int
    item: Frame | str


def read(document: dict[str, Any]) -> OtherProfile:
    """Return the profile in a trace.

    Raises:
        ValueError: It has no events with a duration.
    """
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    tracks: dict[tuple[str, str], list[_Event]] = {}
    pids: dict[str, int] = {}
    for event in _with_durations(events):
        if event.get("cat") in (*_DEVICE, *_PROFILER_SPANS):
            continue
        pid, tid = str(event.get("pid", "")), str(event.get("tid", ""))
        process = f"process {pid}" if pid.isdigit() else pid or MAIN
        if pid.isdigit():
            pids[process] = int(pid)
        tracks.setdefault((process, "" if tid == pid else tid), []).append(_event(event))
    if not tracks:
        raise ValueError("it has no events with a duration")
    has_frames = any(isinstance(event.item, Frame) for track in tracks.values() for event in track)
    is_torch = "schemaVersion" in document or "deviceProperties" in document
    missing = ["its events have no memory, causes of waits or times on cores"]
    if is_torch and not any(event.get("cat") == "python_function" for event in events):
        missing.append("it has no Python functions: record with `with_stack=True`")
    elif is_torch:
        missing.append("its lines are the first lines of functions")
    elif not has_frames:
        missing.append("it has no functions with their files, so that no lines can be named")
    spans: list[SpanEvent] = []
    return OtherProfile(
        "torch.profiler" if is_torch else "a tracer",
        _samples(tracks, spans, missing),
        missing,
        _INTERVAL_NS,
        pids=pids,
        has_first_lines=is_torch,
        spans=spans,
        windows=_windows(events, pids) if is_torch else [],
    )


def _with_durations(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield complete events. Begins and ends of a thread are joined."""
    open_events: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in events:
        phase, at = event.get("ph"), event.get("ts")
        if phase not in ("X", "B", "E") or not _is_time(at):
            continue
        if phase == "X":
            if _is_time(event.get("dur")):
                yield event
            continue
        stack = open_events.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        if phase == "B":
            stack.append(event)
        elif stack:
            begin = stack.pop()
            yield {**begin, "dur": max(0.0, at - begin["ts"])}


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value < 2**53


def _event(event: dict[str, Any]) -> _Event:
    start_ns = round(event["ts"] * 1e3)
    return _Event(start_ns, start_ns + round(event["dur"] * 1e3), _item(event))


def _item(event: dict[str, Any]) -> Frame | str:
    """Return the function of an event, or the name of its span."""
    name, category, args = str(event.get("name", "?")), event.get("cat"), event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in _OPERATIONS:
        return Frame(name, "<torch>", 0)
    match = _TORCH_PLACE.fullmatch(name) if category == "python_function" else None
    if match is None and category not in ("user_annotation", "python_function"):
        match = _PLACE.fullmatch(name)
    if match is not None:
        return Frame(match["function"], match["file"], int(match["line"]) % 2**31)
    if category == "python_function":  # a module or a function in C
        return Frame(name, "<torch>", 0)
    file, line = args.get("filename") or args.get("file"), args.get("line")
    if isinstance(file, str):
        return Frame(name, file, line % 2**31 if isinstance(line, int) else 0)
    return "optimizer_step" if name.startswith("Optimizer.step#") else name


def _samples(
    tracks: dict[tuple[str, str], list[_Event]], spans: list[SpanEvent], missing: list[str]
) -> Iterator[StackSample]:
    """Yield the stacks of all threads with their own times, and add the spans to a list.

    Spans that are nested too deeply count as their outer ones, with a note in `missing`.
    """
    note = f"it has spans within {MAX_DEPTH} others, which count as parts of these"
    for (process, thread), events in tracks.items():
        events.sort(key=lambda event: (event.start_ns, -event.end_ns))
        # Ends, paths and frames of the open events.
        stack: list[tuple[int, tuple[str, ...], tuple[Frame, ...]]] = []
        cursor = 0
        for event in [*events, _Event(2**62, 2**62, "")]:
            while stack and stack[-1][0] <= event.start_ns:
                end_ns, path, frames = stack.pop()
                if end_ns > cursor and frames:
                    yield StackSample(process, thread, frames, end_ns - cursor, path, False, end_ns)
                cursor = max(cursor, end_ns)
            if stack:
                _, path, frames = stack[-1]
                ns = event.start_ns - cursor
                if ns > 0 and frames:
                    yield StackSample(process, thread, frames, ns, path, False, event.start_ns)
            cursor = event.start_ns
            outer_end_ns, path, frames = stack[-1] if stack else (2**62, (), ())
            end_ns = min(event.end_ns, outer_end_ns)
            if isinstance(event.item, Frame):
                frames = without_middle((*frames, event.item))
            elif not thread and len(path) == MAX_DEPTH:
                if note not in missing:
                    missing.append(note)
            elif not thread and event.start_ns < 2**62:
                path = (*path, event.item)
                spans.append(SpanEvent(process, path, event.start_ns, end_ns))
            stack.append((end_ns, path, frames))


def _windows(events: list[dict[str, Any]], pids: dict[str, int]) -> list[GpuWindow]:
    """Return the activity of GPUs as one window, none without kernels."""
    timed = [x for x in events if x.get("ph") == "X" and _is_time(x.get("ts"))]
    timed = [event for event in timed if _is_time(event.get("dur"))]
    kernels = [event for event in timed if event.get("cat") in ("kernel", "Kernel")]
    if not kernels or not pids:
        return []
    start_ns = round(min(event["ts"] for event in timed) * 1e3)
    end_ns = round(max(event["ts"] + event["dur"] for event in timed) * 1e3)
    names, work, calls = device_activity(timed, 0.0, start_ns, end_ns, {})
    return [
        GpuWindow(
            pid=next(iter(pids.values())),
            boot_id="",
            devices=sorted({str((event.get("args") or {}).get("device", 0)) for event in kernels}),
            start_ns=start_ns,
            end_ns=end_ns,
            error_ns=0,
            beside_ns=0,
            names=names,
            work=work,
            calls=calls,
            spans={},
            looks=np.zeros(0, HOST_SAMPLE),
            paths=[],
            stacks=[],
            period_ns=0,
        )
    ]
