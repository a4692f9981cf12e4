"""Reads windows on the GPU: Kineto's traces, on the clock of our spans.

    windows, problems = read_windows(Path("profiles/one/timing"))

Of a trace, kernels, copies and fills of the device are taken, and the calls of CUDA's runtime and
driver; which call made which work is told by their `correlation`. All kernels of a CUDA graph have
the one of its launch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.profiler.session import Frame, Stack
from hotloop.profiler.session.gpu import CALL, COPY, FILL, KERNEL, LOOK, WORK, GpuWindow
from hotloop.timing.gpu_window import SUFFIX, VERSION

# By Kineto's categories, the present ones and those before 2022.
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


def read_windows(directories: Iterable[Path]) -> tuple[list[GpuWindow], list[str]]:
    """All windows of some directories in the order of their times, and what could not be read."""
    found: list[GpuWindow] = []
    problems: list[str] = []
    for path in sorted({path for one in directories for path in one.glob(f"*{SUFFIX}")}):
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            if about["version"] > VERSION:
                raise ValueError(f"it is of version {about['version']}: update hotloop")
            if "problem" in about:
                raise ValueError(f"torch's profiler raised {about['problem']}")
            trace = path.parent / Path(about["trace"]).name
            content = json.loads(trace.read_text(encoding="utf-8", errors="replace"))
            found.append(window(about, content["traceEvents"]))
        except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            told = f"{type(error).__name__}: {error}" if not str(error) else str(error)
            problems.append(f"the window on the GPU {path} can't be read: {told}")
    return sorted(found, key=lambda one: one.start_ns), problems


def window(about: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> GpuWindow:
    """A window of what was written beside its trace, and of the trace's events.

    Raises:
        ValueError: there are no markers in the trace, so its clock is not known.
        KeyError, TypeError: something is missing.
    """
    events = [one for one in events if one.get("ph") == "X" and _is_timed(one)]
    offset_ns, error_ns = offset(about, events)
    start_ns, end_ns = int(about["start_ns"]), int(about["end_ns"])
    names: dict[str, int] = {}
    threads = _threads(about["threads"])
    work: list[tuple[int, ...]] = []
    calls: list[tuple[int, ...]] = []
    for one in events:
        category, args = one.get("cat"), one.get("args") or {}
        if category not in _WORK and category not in _CALLS:
            continue
        start = round(one["ts"] * 1e3 + offset_ns)
        end = start + round(one["dur"] * 1e3)
        if end <= start_ns or start >= end_ns:  # of the profiler's own start and end
            continue
        name = names.setdefault(str(one.get("name", "?")), len(names))
        correlation = _whole(args.get("correlation", -1))
        if category in _WORK:
            device = _whole(args.get("device", one.get("pid", 0)))
            stream = _whole(args.get("stream", one.get("tid", 0)))
            size_bytes = _whole(args.get("bytes", 0))
            kind = _WORK[str(category)]
            work.append((start, end, name, kind, device, stream, correlation, size_bytes))
        else:
            tid = _whole(one.get("tid", 0))
            calls.append((start, end, name, threads.get(tid, tid), correlation))
    before, after = (_totals(spans) for spans in about["spans"])
    frames = [Frame(*place) for place in about["places"]]
    return GpuWindow(
        pid=int(about["pid"]),
        boot_id=str(about["boot_id"]),
        devices=[str(one) for one in about["devices"]],
        start_ns=start_ns,
        end_ns=end_ns,
        error_ns=error_ns,
        beside_ns=start_ns - int(about["began_ns"]) + int(about["written_ns"]) - end_ns,
        names=list(names),
        work=_ordered(work, WORK),
        calls=_ordered(calls, CALL),
        spans={
            path: (count - before.get(path, (0, 0))[0], total - before.get(path, (0, 0))[1])
            for path, (count, total) in after.items()
        },
        looks=np.array([tuple(one) for one in about["looks"]], LOOK),
        paths=[tuple(path) for path in about["paths"]],
        stacks=[
            Stack(tuple(frames[place] for place in places), tuple(lines))
            for places, lines in about["stacks"]
        ],
        period_ns=int(about["period_ns"]),
    )


def offset(about: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> tuple[float, int]:
    """What turns a trace's time in ns into CLOCK_MONOTONIC's, and how far it may be off.

    Each marker was recorded between two looks at the clock, which bounds it from both sides. Where
    the bounds of all contradict one another, the two clocks have drifted apart within the window;
    half of that is the error.

    Raises:
        ValueError: the trace has no markers, or not all.
    """
    recorded = sorted(
        (one["ts"] * 1e3, (one["ts"] + one["dur"]) * 1e3)
        for one in events
        if one.get("name") == about["marker"] and one.get("cat") == "user_annotation"
    )
    read = about["markers"]
    if not recorded or len(recorded) != len(read):
        raise ValueError(
            f"expected {len(read)} markers in its trace, got {len(recorded)}: its clock is not "
            "known"
        )
    pairs = list(zip(recorded, read, strict=True))
    least = max(before - start for (start, _), (before, _) in pairs)
    most = min(after - end for (_, end), (_, after) in pairs)
    return (least + most) / 2, math.ceil(abs(most - least) / 2)


def _is_timed(event: Mapping[str, Any]) -> bool:
    times = event.get("ts"), event.get("dur")
    return all(isinstance(one, int | float) and math.isfinite(one) for one in times)


def _whole(value: object) -> int:
    """A number that older traces write as text ("stream 7"); −1: it is none."""
    if isinstance(value, int):
        return value
    digits = str(value).rpartition(" ")[2]
    return int(digits) if digits.lstrip("-").isdigit() else -1


def _threads(known: Iterable[tuple[int | None, int | None, str]]) -> dict[int, int]:
    """The kernel's number by each number that Kineto may call a thread by.

    Of a thread that did not start it, it knows the POSIX one, of which it keeps 32 bits.
    """
    found: dict[int, int] = {}
    for native, ident, _ in known:
        if native is None or ident is None:
            continue
        low = ident & _MASK
        for number in (ident, low, low - (1 << 32) if low >> 31 else low):
            found.setdefault(number, native)
    return found | {native: native for native, _, _ in known if native is not None}


def _totals(spans: Iterable[Any]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Count and total ns of each place, those of several kinds together."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for path, _, count, total, *_ in spans:
        before = found.get(tuple(path), (0, 0))
        found[tuple(path)] = before[0] + count, before[1] + total
    return found


def _ordered(rows: list[tuple[int, ...]], dtype: np.dtype) -> np.ndarray:
    array = np.array(rows, dtype)
    return array[np.argsort(array["start_ns"], kind="stable")]
