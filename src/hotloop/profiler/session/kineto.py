"""Reader of GPU windows: Kineto's traces, converted to the clock of the spans.

    windows, problems = read_windows([Path("profiles/one/timing")])

The reader takes a trace's kernels, copies and fills, and the calls of CUDA's runtime and driver.
`correlation` connects a call with the work that it starts. All kernels of a CUDA graph have the
correlation of its launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base import documents
from hotloop.base.files import read_regular
from hotloop.profiler.session import Frame, Stack
from hotloop.profiler.session.gpu import CALL, COPY, FILL, HOST_SAMPLE, KERNEL, WORK, GpuWindow
from hotloop.profiler.session.validation import check_window
from hotloop.timing.gpu_window import SUFFIX, VERSION

# Kinds of work by Kineto's categories, which changed in 2022.
_WORK = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": FILL,
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": FILL,
}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
_MASK = 0xFFFFFFFF
_Event = Mapping[str, Any]


def read_windows(directories: Iterable[Path]) -> tuple[list[GpuWindow], list[str]]:
    """Return all windows of some directories, sorted by time, and messages on unreadable ones."""
    windows: list[GpuWindow] = []
    problems: list[str] = []
    for path in sorted({path for x in directories for path in x.glob(f"*{SUFFIX}")}):
        try:
            metadata = documents.read(path)
            if metadata["version"] > VERSION:
                raise ValueError(f"it has version {metadata['version']}: update hotloop")
            if "problem" in metadata:
                raise ValueError(f"torch's profiler raised {metadata['problem']}")
            trace = path.parent / Path(metadata["trace"]).name
            content = documents.parse(read_regular(trace).decode("utf-8", "replace"))
            window = parse_window(metadata, content["traceEvents"])
            check_window(window)
            windows.append(window)
        except Exception as error:  # the files may have any content
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, (OSError, ValueError)):
                reason = getattr(error, "strerror", None) or str(error)
            problems.append(f"the GPU window {path} can't be read: {reason}")
    return sorted(windows, key=lambda window: window.start_ns), problems


def parse_window(metadata: Mapping[str, Any], events: Iterable[_Event]) -> GpuWindow:
    """Return a window, from its metadata and the events of its trace.

    Raises:
        ValueError: The trace has no markers, so its clock is unknown.
        KeyError, TypeError: A field is missing.
    """
    events = [event for event in events if event.get("ph") == "X" and _is_timed(event)]
    offset_ns, error_ns = clock_offset(metadata, events)
    start_ns, end_ns = int(metadata["start_ns"]), int(metadata["end_ns"])
    native_ids = _native_ids(metadata["threads"])
    names, work, calls = device_activity(events, offset_ns, start_ns, end_ns, native_ids)
    # Add the spans and the samples of the host.
    before, after = (_totals(spans) for spans in metadata["spans"])
    frames = [Frame(*place) for place in metadata["places"]]
    return GpuWindow(
        pid=int(metadata["pid"]),
        boot_id=str(metadata["boot_id"]),
        devices=[str(name) for name in metadata["devices"]],
        start_ns=start_ns,
        end_ns=end_ns,
        error_ns=error_ns,
        beside_ns=start_ns - int(metadata["began_ns"]) + int(metadata["written_ns"]) - end_ns,
        names=names,
        work=work,
        calls=calls,
        spans={
            path: (count - before.get(path, (0, 0))[0], total - before.get(path, (0, 0))[1])
            for path, (count, total) in after.items()
        },
        looks=np.array([tuple(row) for row in metadata["looks"]], HOST_SAMPLE),
        paths=[tuple(path) for path in metadata["paths"]],
        stacks=[
            Stack(tuple(frames[place] for place in places), tuple(lines))
            for places, lines in metadata["stacks"]
        ],
        period_ns=int(metadata["period_ns"]),
    )


def device_activity(
    events: Iterable[_Event],
    offset_ns: float,
    start_ns: int,
    end_ns: int,
    native_ids: Mapping[int, int],
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the names, the work of the devices and the calls of CUDA in a part of a trace.

    Args:
        events: timed events of the trace.
        offset_ns: offset from the trace's clock to that of the result.
        start_ns, end_ns: the part.
        native_ids: native thread ids by the trace's numbers of threads, see `_native_ids`.
    """
    names: dict[str, int] = {}
    work: list[tuple[int, ...]] = []
    calls: list[tuple[int, ...]] = []
    for event in events:
        category, args = event.get("cat"), event.get("args") or {}
        if category not in _WORK and category not in _CALLS:
            continue
        start = round(event["ts"] * 1e3 + offset_ns)
        end = start + round(event["dur"] * 1e3)
        if end <= start_ns or start >= end_ns:  # of the profiler's own start and end
            continue
        name = names.setdefault(str(event.get("name", "?")), len(names))
        correlation = _integer(args.get("correlation", -1))
        if category in _WORK:
            device = _integer(args.get("device", event.get("pid", 0)))
            stream = _integer(args.get("stream", event.get("tid", 0)))
            size_bytes = _integer(args.get("bytes", 0))
            kind = _WORK[str(category)]
            work.append((start, end, name, kind, device, stream, correlation, size_bytes))
        else:
            tid = _integer(event.get("tid", 0))
            calls.append((start, end, name, native_ids.get(tid, tid), correlation))
    return list(names), _sorted_array(work, WORK), _sorted_array(calls, CALL)


def clock_offset(metadata: Mapping[str, Any], events: Iterable[_Event]) -> tuple[float, int]:
    """Return the offset in ns from a trace's clock to CLOCK_MONOTONIC, and its maximum error.

    Each marker was recorded between two readings of the clock, which bound it from both sides. If
    the bounds contradict one another, the clocks have drifted apart in the window. The error is
    half of this drift.

    Raises:
        ValueError: The trace lacks some or all markers.
    """
    recorded = sorted(
        (event["ts"] * 1e3, (event["ts"] + event["dur"]) * 1e3)
        for event in events
        if event.get("name") == metadata["marker"] and event.get("cat") == "user_annotation"
    )
    markers = metadata["markers"]
    if not recorded or len(recorded) != len(markers):
        raise ValueError(
            f"expected {len(markers)} markers in its trace, got {len(recorded)}: its clock is "
            "unknown"
        )
    pairs = list(zip(recorded, markers, strict=True))
    low = max(before - start for (start, _), (before, _) in pairs)
    high = min(after - end for (_, end), (_, after) in pairs)
    return (low + high) / 2, math.ceil(abs(high - low) / 2)


def _is_timed(event: _Event) -> bool:
    times = event.get("ts"), event.get("dur")
    return all(isinstance(time, int | float) and math.isfinite(time) for time in times)


def _integer(value: object) -> int:
    """Return an integer, which older traces write as text ("stream 7"), or −1."""
    if isinstance(value, int):
        return value
    digits = str(value).rpartition(" ")[2]
    return int(digits) if digits.lstrip("-").isdigit() else -1


def _native_ids(threads: Iterable[tuple[int | None, int | None, str]]) -> dict[int, int]:
    """Return the native thread id by each number that Kineto may use for a thread."""
    # For threads other than the one that started it, Kineto uses 32 bits of the POSIX number.
    native_ids: dict[int, int] = {}
    for native, ident, _ in threads:
        if native is None or ident is None:
            continue
        low = ident & _MASK
        for number in (ident, low, low - (1 << 32) if low >> 31 else low):
            native_ids.setdefault(number, native)
    return native_ids | {native: native for native, _, _ in threads if native is not None}


def _totals(spans: Iterable[Any]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return the count and total ns of each span path, with all kinds added up."""
    totals: dict[tuple[str, ...], tuple[int, int]] = {}
    for path, _, count, total, *_ in spans:
        previous = totals.get(tuple(path), (0, 0))
        totals[tuple(path)] = previous[0] + count, previous[1] + total
    return totals


def _sorted_array(rows: list[tuple[int, ...]], dtype: np.dtype) -> np.ndarray:
    array = np.array(rows, dtype)
    return array[np.argsort(array["start_ns"], kind="stable")]
