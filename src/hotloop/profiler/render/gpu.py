"""The GPU in words and rows, which the terminal and the page share, and on the trace's timeline."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hotloop.profiler.diagnose.gpu import short_kernel, told_bytes
from hotloop.profiler.render import words
from hotloop.profiler.session import Session
from hotloop.profiler.session.gpu import COPY, GpuUse, GpuWindow, synchronisations
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.stages import STAGES
from hotloop.timing.table import duration

HEADINGS = ("of the time", "a second", "median", "longest", "")
NOTE = (
    "Spans and samples are the host's time: a kernel runs after the call that launched it. What "
    "the GPU did is known of these windows alone"
)
_IDLE = {
    "launch": "idle, the next launch is awaited",
    "sync": "idle after a synchronisation",
    "host": "idle, the host does something else",
    "device": "idle, what is next was launched",
}
_MOST_LINES, _MOST_KERNELS = 4, 3
# Trace viewers know processes and threads by numbers; the kernel gives none as high.
_FIRST_GPU, _FIRST_CALLS = 1 << 30, 1 << 29
# Rows of a stream, at most.
_LANES = 64

Row = tuple[str, ...]


def title(use: GpuUse) -> str:
    """ "NVIDIA H100, 3 windows of 250 ms"."""
    count = len(use.windows)
    windows = f"{count} window{'s' if count > 1 else ''} of {duration(use.ns / count)}"
    return f"{words.one_line(use.device)}, {windows}"


def no_windows(session: Session) -> str:
    """What is not known of a GPU that was used, and not looked at; empty: none was, or it was."""
    threads = (thread.name for process in session.processes for thread in process.threads)
    if session.gpu or not any(name.startswith("cuda") for name in threads):
        return ""
    return (
        "A GPU was used and not looked at: all times are the host's, and a kernel runs after the "
        "call that launched it. `hotloop profile` looks from 3 s after its first use on, a run of "
        "hotloop's with `--gpu-window-ms 250`"
    )


def note(use: GpuUse) -> str:
    """What times are of, how far their clocks agree, and what the windows cost."""
    error = max(one.error_ns for one in use.windows)
    beside = sum(one.beside_ns for one in use.windows)
    if not any(len(one.calls) or len(one.work) for one in use.windows):
        return (
            f"{NOTE}; no call of CUDA's was seen in any: the program made none meanwhile, or CUPTI "
            "is not allowed here."
        )
    return (
        f"{NOTE}; the two clocks agree within {duration(error)}. Beside the program, beginning, "
        f"ending and writing the windows took {duration(beside)}."
    )


def rows(use: GpuUse) -> list[Row]:
    """What the GPU did, and what it waited for: `HEADINGS` behind a name."""
    host = Host(use)
    found = [_row(use, "busy", use.busy_ns, use.num_kernels, use.kernel_ns, _launched(use))]
    for kernel, ns in sorted(use.kernels.items(), key=lambda item: -item[1])[:_MOST_KERNELS]:
        found.append(
            (f"  {words.one_line(short_kernel(kernel))}", f"{ns / use.ns:.1%}", "", "", "", "")
        )
    for why, name in _IDLE.items():
        gaps = [gap.ns for gap in use.gaps if gap.why == why]
        told = _stages(use, host) if why == "host" else ""
        found += [_row(use, name, sum(gaps), len(gaps), gaps, told)] if sum(gaps) else []
    for one in use.copies:
        name = " ".join(filter(None, ("copies", one.direction + ",", one.memory))).rstrip(",")
        told = f"{told_bytes(one.size_bytes / use.ns * 1e9)} a second"
        if one.host_ns >= 0.005 * use.ns:
            told += f"; the host {one.host_ns / use.ns:.0%} of the time"
        found.append(_row(use, name, one.device_ns, one.count, [], told))
    if len(use.syncs_ns):
        waited = int(use.syncs_ns.sum())
        name = "the host waits for the GPU"
        found.append(_row(use, name, waited, len(use.syncs_ns), use.syncs_ns, ""))
        for leaf, ns in list(host.by_line(use.in_syncs).items())[:_MOST_LINES]:
            found.append((f"  at {words.place(leaf)}", f"{ns / use.ns:.1%}", "", "", "", ""))
    return found


def _row(
    use: GpuUse, name: str, ns: int, count: int, each: Sequence[int] | np.ndarray, told: str
) -> Row:
    known = len(each) > 0
    return (
        name,
        f"{ns / use.ns:.1%}",
        f"{count / use.ns * 1e9:,.0f}",
        duration(statistics.median(map(int, each))) if known else "",
        duration(int(max(each))) if known else "",
        told,
    )


def _launched(use: GpuUse) -> str:
    """Launches, and of them those of graphs."""
    told = f"{use.launches_per_s:,.0f} launches a second"
    if use.launches_per_update is not None:
        told += f", {use.launches_per_update:,.1f} an update"
    return told + (f", {use.num_graphs / use.num_launches:.0%} graphs" if use.num_graphs else "")


def _stages(use: GpuUse, host: Host) -> str:
    """What the host did while the GPU was idle: "stepping and resetting environments 61%"."""
    shares = [(stage, ns / use.ns) for stage, ns in host.by_stage(use.in_gaps).items()]
    return ", ".join(f"{STAGES[stage]} {share:.0%}" for stage, share in shares[:2] if share > 0.01)


# --- the trace ------------------------------------------------------------------------------------


def trace_events(session: Session) -> Iterator[dict[str, Any]]:
    """Kernels and calls of all windows, names of rows before what stands in them.

    A device is a process of its own, a row a stream; calls are rows of the process that made them.
    """
    zero = session.start_ns
    hosts = {process.pid: process for process in session.processes}
    known: set[tuple[int, int]] = set()
    free: dict[tuple[int, int], list[int]] = {}

    def named(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
        if (pid, tid) not in known:
            known.add((pid, tid))
            yield _metadata("thread_name", pid, tid, name=name)

    keys = sorted({(one.pid, int(device)) for one in session.gpu for device in one.work["device"]})
    for index, (pid, device) in enumerate(keys):
        own = _FIRST_GPU + index
        of = f" of {hosts[pid].name}" if len({pid for pid, _ in keys}) > 1 else ""
        yield _metadata("process_name", own, 0, name=f"GPU {device}{of}")
        yield _metadata("process_sort_index", own, 0, sort_index=len(hosts) + index)
    for window in session.gpu:
        for row in window.work:
            own = _FIRST_GPU + keys.index((window.pid, int(row["device"])))
            stream = int(row["stream"])
            # Branches of a graph are of one stream, and run side by side.
            lane = _lane(free.setdefault((own, stream), []), row)
            tid = 1 + _LANES * (stream % (_FIRST_CALLS // _LANES)) + lane
            yield from named(own, tid, f"stream {stream}" + (f" ({lane + 1})" if lane else ""))
            kind = "transfer" if row["kind"] == COPY else "work"
            yield _event(window, row, kind, own, tid, zero)
        syncs = set(synchronisations(window)["correlation"].tolist())
        for row in window.calls:
            tid = _FIRST_CALLS + int(row["thread"]) % _FIRST_CALLS
            yield from named(window.pid, tid, f"CUDA calls of thread {row['thread']}")
            kind = "wait" if int(row["correlation"]) in syncs else "work"
            yield _event(window, row, kind, window.pid, tid, zero)


def _lane(free: list[int], row: np.void) -> int:
    """The first row of a stream on which nothing runs any more; `free` says from when on."""
    start, end = int(row["start_ns"]), int(row["end_ns"])
    for lane, ended in enumerate(free):
        if ended <= start or lane == _LANES - 1:
            free[lane] = end
            return lane
    free.append(end)
    return len(free) - 1


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
