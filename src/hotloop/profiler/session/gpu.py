"""GPU activity in measurement windows: utilization, idle gaps, launches and copies.

    use = gpu_use(session)
    if use is not None:
        print(use.busy_share, use.launches_per_s, use.gaps_ns("launch"))

Windows of a few hundred milliseconds (`timing.gpu_window`) are measured on the device's clock.
Spans are the host's: one that launches a kernel ends before the kernel runs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hotloop.profiler.session import Session, Stack

KERNEL, COPY, FILL = 0, 1, 2
WORK = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("name", "i4"),
        ("kind", "i1"),
        ("device", "i4"),
        ("stream", "i8"),
        ("correlation", "i8"),
        ("size_bytes", "i8"),
    ]
)
CALL = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("name", "i4"),
        ("thread", "i8"),
        ("correlation", "i8"),
    ]
)
HOST_SAMPLE = np.dtype([("at_ns", "i8"), ("thread", "i8"), ("path", "i4"), ("stack", "i4")])

_LAUNCH = re.compile(r"^(cuda|cu|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel")
_GRAPH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
# Calls that return when the device has finished.
_SYNC = re.compile(
    r"^(cuda|cu|hip)((Stream|Device|Event|Ctx)Synchronize|Memcpy(2D|3D|HtoD|DtoH|DtoD)?(_v\d+)?$)"
)
# Spans that count as an update. The first name with spans is used, parts of updates come last.
UPDATES = ("minibatch", "update", "optimizer_step", "backward")
# Maximum length of a gap in which the host launches kernels one after another. An eager operation
# takes about 5 to 20 µs, one of a backward pass up to 50.
SHORT_GAP_NS = 100_000
# A copy to the host and a synchronization within this time count as one wait.
_MERGED_WAIT_NS = 20_000


@dataclass
class GpuWindow:
    """CUDA activity of a process in a few hundred milliseconds. Times are on CLOCK_MONOTONIC.

    Attributes:
        pid, boot_id: the process and its machine's boot.
        devices: names of torch's devices.
        start_ns, end_ns: start and end of the window.
        error_ns: maximum difference between the trace's clock and the spans' clock.
        beside_ns: overhead outside of the window for starting, stopping and writing it.
        names: names of work and calls, by their `name`.
        work: array of `WORK`, the device's activity. `kind` is KERNEL, COPY or FILL.
        calls: array of `CALL`, the host's calls of CUDA.
        spans: count and total ns of each span path in the window.
        looks: array of `HOST_SAMPLE`, whose `path` and `stack` are indices of `paths`, `stacks`.
        period_ns: time between two host samples.
    """

    pid: int
    boot_id: str
    devices: list[str]
    start_ns: int
    end_ns: int
    error_ns: int
    beside_ns: int
    names: list[str]
    work: np.ndarray
    calls: np.ndarray
    spans: Mapping[tuple[str, ...], tuple[int, int]]
    looks: np.ndarray
    paths: list[tuple[str, ...]]
    stacks: list[Stack]
    period_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    def call_mask(self, pattern: re.Pattern[str]) -> np.ndarray:
        """Return a bool array that marks the calls whose name matches a pattern."""
        matches = np.array([bool(pattern.match(name)) for name in self.names], bool)
        return matches[self.calls["name"]] if len(matches) else np.zeros(len(self.calls), bool)


class Gap(NamedTuple):
    """A stretch of time in which the device is idle.

    Attributes:
        why: "device": the next work is already launched. "sync": the host has just waited for
            the device. "launch": the host launches kernels more slowly than the device runs them.
            "host": the host does other work.
    """

    start_ns: int
    end_ns: int
    cause: str

    @property
    def ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.start_ns


class Copies(NamedTuple):
    """Copies of one kind.

    Attributes:
        direction: "to the device", "to the host", "on the device", "other".
        memory: kind of the host's memory: "pageable", "pinned", or empty.
        count, size_bytes: number of copies and their total size.
        device_ns: time of the copies on the device.
        host_ns: time of the host in the calls that start them.
    """

    direction: str
    memory: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    size_bytes: int
    device_ns: int
    host_ns: int


class HostPosition(NamedTuple):
    """A position of the host: the open spans and the stack."""

    path: tuple[str, ...]
    stack: Stack


@dataclass
class GpuUse:
    """Summary of all windows of one process.

    Attributes:
        pid: process id.
        device: name of the device with the most work.
        windows: the windows, including those without work.
        ns: total length of the windows.
        busy_ns: time in which a kernel, copy or fill ran.
        gaps: idle times.
        num_kernels, num_launches, num_graphs: number of kernels, of calls that launch a kernel or a
            graph, and of calls that launch a graph.
        num_updates: number of finished spans of updates.
        kernel_ns: duration of each kernel, int64.
        copies: copies by kind.
        syncs_ns: duration of each synchronization of the host, int64.
        host_in_gaps, host_in_syncs, host_in_copies, host_in_windows: nanoseconds by the host's
            position, in gaps caused by the host, in waiting calls, in copies from pageable memory,
            and in all windows.
        kernels: nanoseconds by kernel name.
    """

    pid: int
    device: str
    windows: list[GpuWindow]
    ns: int
    busy_ns: int
    gaps: list[Gap]
    num_kernels: int
    num_launches: int
    num_graphs: int
    num_updates: int
    kernel_ns: np.ndarray
    copies: list[Copies]
    syncs_ns: np.ndarray
    host_in_gaps: dict[HostPosition, float] = field(default_factory=dict)
    host_in_syncs: dict[HostPosition, float] = field(default_factory=dict)
    host_in_copies: dict[HostPosition, float] = field(default_factory=dict)
    host_in_windows: dict[HostPosition, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @property
    def busy_share(self) -> float:
        """Share of the windows in which the device is busy."""
        return self.busy_ns / self.ns if self.ns else 0.0

    @property
    def launches_per_s(self) -> float:
        """Launching calls per second."""
        return self.num_launches / self.ns * 1e9 if self.ns else 0.0

    @property
    def launches_per_update(self) -> float | None:
        """Launching calls per update, None if no update ended in a window."""
        return self.num_launches / self.num_updates if self.num_updates else None

    @property
    def median_kernel_ns(self) -> float:
        """Median duration of a kernel, NaN without kernels."""
        return float(np.median(self.kernel_ns)) if len(self.kernel_ns) else float("nan")

    def gaps_ns(self, *causes: str) -> int:
        """Return the total length of the gaps with some causes."""
        return sum(gap.ns for gap in self.gaps if gap.cause in causes)


def gpu_use(session: Session) -> GpuUse | None:
    """Return the summary of the process that uses a GPU most, None without windows."""
    by_pid: dict[int, list[GpuWindow]] = {}
    for window in session.gpu:
        by_pid.setdefault(window.pid, []).append(window)
    if not by_pid:
        return None
    return summarize_windows(
        max(by_pid.values(), key=lambda group: sum(len(x.calls) for x in group))
    )


def summarize_windows(windows: Sequence[GpuWindow]) -> GpuUse:
    """Return the summary of the windows of one process."""
    work = np.concatenate([window.work for window in windows])
    devices, counts = np.unique(work["device"], return_counts=True)
    number = int(devices[np.argmax(counts)]) if len(devices) else 0
    names = windows[0].devices
    name = names[number] if 0 <= number < len(names) else f"GPU {number}"
    use = GpuUse(
        pid=windows[0].pid,
        device=name,
        windows=list(windows),
        ns=sum(window.duration_ns for window in windows),
        busy_ns=0,
        gaps=[],
        num_kernels=0,
        num_launches=0,
        num_graphs=0,
        num_updates=_num_updates(windows),
        kernel_ns=np.zeros(0, np.int64),
        copies=_copies(windows, number),
        syncs_ns=np.zeros(0, np.int64),
    )
    for window in windows:
        _add_window(use, window, window.work[window.work["device"] == number])
    return use


def _add_window(use: GpuUse, window: GpuWindow, work: np.ndarray) -> None:
    starts, ends = busy_intervals(work, window.start_ns, window.end_ns)
    use.busy_ns += int((ends - starts).sum())
    kernels = work[work["kind"] == KERNEL]
    durations = kernels["end_ns"] - kernels["start_ns"]
    use.num_kernels += len(kernels)
    use.kernel_ns = np.concatenate((use.kernel_ns, durations))
    for name, total in zip(*_sums(kernels["name"], durations), strict=True):
        kernel = window.names[name]
        use.kernels[kernel] = use.kernels.get(kernel, 0) + int(total)
    graphs = window.call_mask(_GRAPH)
    use.num_graphs += int(graphs.sum())
    use.num_launches += int((graphs | window.call_mask(_LAUNCH)).sum())
    syncs = synchronizations(window)
    use.syncs_ns = np.concatenate((use.syncs_ns, syncs["end_ns"] - syncs["start_ns"]))
    gaps = list(_gaps(window, work, starts, ends, syncs))
    use.gaps += gaps
    thread = _busiest_thread(window)
    host_gaps = [gap for gap in gaps if gap.cause != "device"]
    _add_positions(use.host_in_gaps, window, thread, [(x.start_ns, x.end_ns) for x in host_gaps])
    _add_positions(use.host_in_syncs, window, None, _call_intervals(syncs), syncs["thread"])
    copies = pageable_copy_calls(window)
    _add_positions(use.host_in_copies, window, None, _call_intervals(copies), copies["thread"])
    _add_positions(use.host_in_windows, window, thread, [(window.start_ns, window.end_ns)])


def busy_intervals(work: np.ndarray, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and ends of times in which any work runs, int64. Streams may overlap."""
    if not len(work):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(work["start_ns"], kind="stable")
    starts = np.maximum(work["start_ns"][order], start_ns)
    running_ends = np.maximum.accumulate(np.minimum(work["end_ns"][order], end_ns))
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] > running_ends[:-1]
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(starts) - 1)
    return starts[begins], running_ends[lasts]


def synchronizations(window: GpuWindow) -> np.ndarray:
    """Return the calls that wait for the device, `CALL`. A copy and its wait count as one."""
    pageable = _copy_correlations(window, "DtoH", "Pageable")
    # `cudaMemcpyAsync` to pageable memory returns after the copy.
    calls = window.calls[window.call_mask(_SYNC) | np.isin(window.calls["correlation"], pageable)]
    copies = set(pageable.tolist())
    merged: list[list[int]] = []
    for start, end, name, thread, correlation in calls.tolist():
        last = merged[-1] if merged else None
        if (
            last is not None
            and last[3] == thread
            and start - last[1] < _MERGED_WAIT_NS
            and last[4] in copies
        ):
            last[1] = max(last[1], end)
        else:
            merged.append([start, end, name, thread, correlation])
    return np.array([tuple(call) for call in merged], CALL)


def pageable_copy_calls(window: GpuWindow) -> np.ndarray:
    """Return the calls that copy from pageable memory to the device, `CALL`."""
    return window.calls[
        np.isin(window.calls["correlation"], _copy_correlations(window, "HtoD", "Pageable"))
    ]


def _copy_correlations(window: GpuWindow, *words: str) -> np.ndarray:
    """Return the correlations of copies whose name contains all words."""
    matches = np.array([all(word in name for word in words) for name in window.names], bool)
    work = window.work
    if not len(matches):
        return np.zeros(0, np.int64)
    return work["correlation"][(work["kind"] == COPY) & matches[work["name"]]]


def _gaps(
    window: GpuWindow, work: np.ndarray, starts: np.ndarray, ends: np.ndarray, syncs: np.ndarray
) -> Iterator[Gap]:
    """Yield the gaps between times of work. Gaps at the window's ends have the cause "host"."""
    if not len(starts):
        yield Gap(window.start_ns, window.end_ns, "host")
        return
    if starts[0] > window.start_ns:
        yield Gap(window.start_ns, int(starts[0]), "host")
    calls = window.calls
    launches = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
    order = np.argsort(work["start_ns"], kind="stable")
    first = work[order][np.searchsorted(work["start_ns"][order], starts)]
    sync_ends = np.sort(syncs["end_ns"]).tolist()
    for end, start, correlation in zip(
        ends[:-1].tolist(), starts[1:].tolist(), first["correlation"][1:].tolist(), strict=True
    ):
        launch_ns = launches.get(correlation)
        if launch_ns is not None and launch_ns <= end:
            cause = "device"
        else:
            # Find a synchronization that ended within the gap.
            index = bisect_left(sync_ends, end)
            has_waited = index < len(sync_ends) and sync_ends[index] <= start
            is_short = start - end <= SHORT_GAP_NS
            cause = "sync" if has_waited and is_short else "launch" if is_short else "host"
            if has_waited and not is_short:
                # Returning from the call and launching count as synchronization, other time as the
                # host's.
                sync_end = min(start, sync_ends[index] + SHORT_GAP_NS)
                yield Gap(end, sync_end, "sync")
                end = sync_end
        if end < start:
            yield Gap(end, start, cause)
    if ends[-1] < window.end_ns:
        yield Gap(int(ends[-1]), window.end_ns, "host")


def _add_positions(
    totals: dict[HostPosition, float],
    window: GpuWindow,
    thread: int | None,
    times: Sequence[tuple[int, int]],
    threads: np.ndarray | None = None,
) -> None:
    """Add the positions of a thread, or of each of `threads`, which share each time equally."""
    total_ns = sum(end - start for start, end in times)
    samples: list[np.void] = []
    for number in [thread] if threads is None else np.unique(threads).tolist():
        intervals = [x for i, x in enumerate(times) if threads is None or threads[i] == number]
        looks = window.looks[window.looks["thread"] == number]
        if not intervals or not len(looks):
            continue
        begins, ends = np.array(sorted(intervals), np.int64).T
        index = np.searchsorted(begins, looks["at_ns"], side="right") - 1
        within = (index >= 0) & (looks["at_ns"] < ends[np.maximum(index, 0)])
        samples += list(looks[within])
    for sample in samples:
        position = HostPosition(window.paths[sample["path"]], window.stacks[sample["stack"]])
        totals[position] = totals.get(position, 0.0) + total_ns / len(samples)


def _call_intervals(calls: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(calls["start_ns"].tolist(), calls["end_ns"].tolist(), strict=True))


def _busiest_thread(window: GpuWindow) -> int:
    """Return the thread with the most CUDA calls, or the process's first thread without calls."""
    numbers, counts = np.unique(window.calls["thread"], return_counts=True)
    # Autograd's threads run no Python and launch kernels for the thread that waits for them.
    known = np.isin(numbers, window.looks["thread"])
    if not known.any():
        return window.pid
    return int(numbers[known][np.argmax(counts[known])])


def _num_updates(windows: Sequence[GpuWindow]) -> int:
    for name in UPDATES:
        count = sum(
            num_spans
            for window in windows
            for path, (num_spans, _) in window.spans.items()
            if path[-1] == name and name not in path[:-1]
        )
        if count:
            return count
    return 0


def _copies(windows: Sequence[GpuWindow], device: int) -> list[Copies]:
    sums_by_kind: dict[tuple[str, str], list[int]] = {}
    for window in windows:
        calls, work = window.calls, window.work
        copies = work[(work["kind"] == COPY) & (work["device"] == device)]
        order = np.argsort(calls["correlation"], kind="stable")
        # Find the call of each copy.
        durations = np.append(calls["end_ns"] - calls["start_ns"], 0)
        index = np.searchsorted(calls["correlation"], copies["correlation"], sorter=order)
        index = np.append(order, len(calls))[index]
        is_known = np.append(calls["correlation"], -1)[index] == copies["correlation"]
        host_ns = np.where(is_known, durations[index], 0)
        for name in np.unique(copies["name"]).tolist():
            is_kind = copies["name"] == name
            sums = sums_by_kind.setdefault(_kind_of_copy(window.names[name]), [0, 0, 0, 0])
            sums[0] += int(is_kind.sum())
            sums[1] += int(copies["size_bytes"][is_kind].sum())
            sums[2] += int((copies["end_ns"] - copies["start_ns"])[is_kind].sum())
            sums[3] += int(host_ns[is_kind].sum())
    rows = [Copies(*kind, *sums) for kind, sums in sums_by_kind.items()]
    return sorted(rows, key=lambda copies: -copies.device_ns)


def _kind_of_copy(name: str) -> tuple[str, str]:
    """Return direction and memory of a copy such as "Memcpy HtoD (Pageable -> Device)"."""
    directions = {"HtoD": "to the device", "DtoH": "to the host", "DtoD": "on the device"}
    direction = next((text for code, text in directions.items() if code in name), "other")
    memory = "pageable" if "Pageable" in name else "pinned" if "Pinned" in name else ""
    return direction, memory


def _sums(keys: np.ndarray, amounts: np.ndarray) -> tuple[list[int], list[int]]:
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, inverse, amounts)
    return unique.tolist(), sums.tolist()
