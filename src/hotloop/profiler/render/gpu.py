"""GPU activity as text and table rows for terminal and page, and as events of the trace."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hotloop.profiler.diagnose.gpu import describe_bytes, short_kernel_name
from hotloop.profiler.render import phrases
from hotloop.profiler.session import Session
from hotloop.profiler.session.gpu import COPY, GpuUse, GpuWindow, synchronizations
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.stages import STAGES
from hotloop.timing.table import duration

HEADINGS = ("share", "per second", "median", "longest", "")
_NOTE = (
    "Spans and samples are the host's time: a kernel runs after the call that launched it. GPU "
    "activity is recorded only in these windows"
)
_IDLE = {
    "launch": "idle: waiting for the next launch",
    "sync": "idle: after a synchronization",
    "host": "idle: the host does other work",
    "device": "idle: the next kernel is already launched",
}
_MAX_LINES, _MAX_KERNELS = 4, 3
# Process and thread numbers in the trace, higher than any number of the operating system.
_FIRST_GPU, _FIRST_CALLS = 1 << 30, 1 << 29
# Maximum number of rows per stream.
_LANES = 64

Row = tuple[str, ...]


def title(use: GpuUse) -> str:
    """Return a title: "NVIDIA H100, 3 windows of 250 ms"."""
    count = len(use.windows)
    windows = f"{count} window{'s' if count > 1 else ''} of {duration(use.ns / count)}"
    return f"{phrases.one_line(use.device)}, {windows}"


def missing_windows_note(session: Session) -> str:
    """Return a note on a GPU that was used but not recorded, empty otherwise."""
    threads = (thread.name for process in session.processes for thread in process.threads)
    if session.gpu or not any(name.startswith("cuda") for name in threads):
        return ""
    return (
        "A GPU was used but not recorded: all times are the host's, and a kernel runs after the "
        "call that launched it. `hotloop profile` records the GPU from 3 s after its first use, "
        "and `hotloop train` with `--gpu-window-ms 250`"
    )


def clock_note(use: GpuUse) -> str:
    """Return a note on the meaning of the times, the clock error and the windows' overhead."""
    error = max(window.error_ns for window in use.windows)
    overhead = sum(window.beside_ns for window in use.windows)
    if not any(len(window.calls) or len(window.work) for window in use.windows):
        return (
            f"{_NOTE}. They contain no CUDA calls: the program made none meanwhile, or CUPTI is "
            "not permitted here."
        )
    return (
        f"{_NOTE}. The two clocks agree within {duration(error)}. Starting, stopping and writing "
        f"the windows took an additional {duration(overhead)}."
    )


def rows(use: GpuUse) -> list[Row]:
    """Return the rows of the GPU's activity: a name, then the columns of `HEADINGS`."""
    host = Host(use)
    rows = [_row(use, "busy", use.busy_ns, use.num_kernels, use.kernel_ns, _launch_text(use))]
    for kernel, ns in sorted(use.kernels.items(), key=lambda item: -item[1])[:_MAX_KERNELS]:
        name = phrases.one_line(short_kernel_name(kernel))
        rows.append((f"  {name}", f"{ns / use.ns:.1%}", "", "", "", ""))
    for cause, name in _IDLE.items():
        gaps = [gap.ns for gap in use.gaps if gap.cause == cause]
        details = _stage_text(use, host) if cause == "host" else ""
        rows += [_row(use, name, sum(gaps), len(gaps), gaps, details)] if sum(gaps) else []
    for copies in use.copies:
        name = " ".join(filter(None, ("copies", copies.direction + ",", copies.memory))).rstrip(",")
        details = f"{describe_bytes(copies.size_bytes / use.ns * 1e9)} per second"
        if copies.host_ns >= 0.005 * use.ns:
            details += f", {copies.host_ns / use.ns:.0%} of the host's time"
        rows.append(_row(use, name, copies.device_ns, copies.count, [], details))
    if len(use.syncs_ns):
        waited = int(use.syncs_ns.sum())
        name = "the host waits for the GPU"
        rows.append(_row(use, name, waited, len(use.syncs_ns), use.syncs_ns, ""))
        for leaf, ns in list(host.by_line(use.host_in_syncs).items())[:_MAX_LINES]:
            rows.append((f"  at {phrases.place_text(leaf)}", f"{ns / use.ns:.1%}", "", "", "", ""))
    return rows


def _row(
    use: GpuUse, name: str, ns: int, count: int, times_ns: Sequence[int] | np.ndarray, details: str
) -> Row:
    has_times = len(times_ns) > 0
    return (
        name,
        f"{ns / use.ns:.1%}",
        f"{count / use.ns * 1e9:,.0f}",
        duration(statistics.median(map(int, times_ns))) if has_times else "",
        duration(int(max(times_ns))) if has_times else "",
        details,
    )


def _launch_text(use: GpuUse) -> str:
    text = f"{use.launches_per_s:,.0f} launches per second"
    if use.launches_per_update is not None:
        text += f", {use.launches_per_update:,.1f} per update"
    return text + (f", {use.num_graphs / use.num_launches:.0%} graphs" if use.num_graphs else "")


def _stage_text(use: GpuUse, host: Host) -> str:
    """Return the host's stages while the GPU was idle: "stepping environments 61%"."""
    shares = [(stage, ns / use.ns) for stage, ns in host.by_stage(use.host_in_gaps).items()]
    return ", ".join(f"{STAGES[stage]} {share:.0%}" for stage, share in shares[:2] if share > 0.01)


# --- the trace ------------------------------------------------------------------------------------


def trace_events(session: Session) -> Iterator[dict[str, Any]]:
    """Yield the kernels and calls of all windows, with the name of each row before its events.

    A device is a process, a stream one or more rows. Calls are rows of their process.
    """
    zero = session.start_ns
    hosts = {process.pid: process for process in session.processes}
    named_rows: set[tuple[int, int]] = set()
    lane_ends: dict[tuple[int, int], list[int]] = {}

    def name_row(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
        if (pid, tid) not in named_rows:
            named_rows.add((pid, tid))
            yield _metadata("thread_name", pid, tid, name=name)

    keys = sorted({(x.pid, int(device)) for x in session.gpu for device in x.work["device"]})
    for index, (pid, device) in enumerate(keys):
        gpu_pid = _FIRST_GPU + index
        suffix = f" of {hosts[pid].name}" if len({pid for pid, _ in keys}) > 1 else ""
        yield _metadata("process_name", gpu_pid, 0, name=f"GPU {device}{suffix}")
        yield _metadata("process_sort_index", gpu_pid, 0, sort_index=len(hosts) + index)
    for window in session.gpu:
        for row in window.work:
            gpu_pid = _FIRST_GPU + keys.index((window.pid, int(row["device"])))
            stream = int(row["stream"])
            # Branches of a graph run in parallel on one stream.
            lane = _lane(lane_ends.setdefault((gpu_pid, stream), []), row)
            tid = 1 + _LANES * (stream % (_FIRST_CALLS // _LANES)) + lane
            suffix = f" ({lane + 1})" if lane else ""
            yield from name_row(gpu_pid, tid, f"stream {stream}{suffix}")
            kind = "transfer" if row["kind"] == COPY else "work"
            yield _event(window, row, kind, gpu_pid, tid, zero)
        syncs = set(synchronizations(window)["correlation"].tolist())
        for row in window.calls:
            tid = _FIRST_CALLS + int(row["thread"]) % _FIRST_CALLS
            yield from name_row(window.pid, tid, f"CUDA calls of thread {row['thread']}")
            kind = "wait" if int(row["correlation"]) in syncs else "work"
            yield _event(window, row, kind, window.pid, tid, zero)


def _lane(lane_ends: list[int], row: np.void) -> int:
    """Return the first free row of a stream, and update the time at which each row ends."""
    start, end = int(row["start_ns"]), int(row["end_ns"])
    for lane, lane_end in enumerate(lane_ends):
        if lane_end <= start or lane == _LANES - 1:
            lane_ends[lane] = end
            return lane
    lane_ends.append(end)
    return len(lane_ends) - 1


def _event(
    window: GpuWindow, row: np.void, kind: str, pid: int, tid: int, zero: int
) -> dict[str, Any]:
    args = {"correlation": int(row["correlation"])}
    if kind == "transfer":
        args["bytes"] = int(row["size_bytes"])
    return {
        "ph": "X",
        "name": window.names[row["name"]],
        "cat": kind,
        "pid": pid,
        "tid": tid,
        "ts": (int(row["start_ns"]) - zero) / 1e3,
        "dur": max(0, int(row["end_ns"] - row["start_ns"])) / 1e3,
        "args": args,
    }


def _metadata(event: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": pid, "tid": tid, "args": args}
