"""The GPU, by windows: how busy it was, what it waited for, what was launched and copied.

    found = gpu_use(session)
    if found is not None:
        print(found.busy, found.launches_per_s, found.waited_for)

All of it is measured within windows of a few hundred milliseconds (`timing.gpu_window`), on the
device's own clock. Spans are of the host: one that launches a kernel is over before that has run.
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
LOOK = np.dtype([("at_ns", "i8"), ("thread", "i8"), ("path", "i4"), ("stack", "i4")])

_LAUNCH = re.compile(r"^(cuda|cu|hip)(Ext)?(Module)?Launch(Cooperative)?(Kernel|HostFunc)?")
_GRAPH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
# What returns when the device has done what was asked of it.
_SYNC = re.compile(
    r"^(cuda|cu|hip)((Stream|Device|Event|Ctx)Synchronize|Memcpy(2D|3D|HtoD|DtoH|DtoD)?(_v\d+)?$)"
)
# Spans of which one is an update, the first that there is; of an update's parts the last resort.
UPDATES = ("minibatch", "update", "optimizer_step", "backward")
# A gap in which the host launches one kernel after another is no longer than this: an eager
# operation takes some 5 to 20 µs, a backward pass's next one up to 50.
SHORT_GAP_NS = 100_000
# A copy to the host and the synchronisation that waits for it are one: they follow at once.
_AT_ONCE_NS = 20_000


@dataclass
class GpuWindow:
    """What CUDA did within some hundred milliseconds of a process; times are CLOCK_MONOTONIC's.

    Attributes:
        pid, boot_id: of the process.
        devices: names of those that torch saw.
        start_ns, end_ns: of the window.
        error_ns: how far a time of the trace may be off our spans'.
        beside_ns: how long starting the profiler, stopping it and writing took, beside the program.
        names: what the `name` of work and calls refers to.
        work: `WORK`, of the device; `kind` is KERNEL, COPY or FILL.
        calls: `CALL`, of the host to CUDA.
        spans: count and total ns of each place within the window.
        looks: `LOOK`, where threads of Python's were; `path` and `stack` refer to the lists.
        period_ns: between two looks.
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
        """From its start to its end."""
        return self.end_ns - self.start_ns

    def named(self, pattern: re.Pattern[str]) -> np.ndarray:
        """Which calls have such a name, bool."""
        fits = np.array([bool(pattern.match(name)) for name in self.names], bool)
        return fits[self.calls["name"]] if len(fits) else np.zeros(len(self.calls), bool)


class Gap(NamedTuple):
    """A time in which the device did nothing.

    Attributes:
        why: "device": what comes next had been launched already; "sync": the host had waited for
            the device, and went on from there; "launch": the host was launching, and was slower
            than the device; "host": the host did something else.
    """

    start_ns: int
    end_ns: int
    why: str

    @property
    def ns(self) -> int:
        """How long."""
        return self.end_ns - self.start_ns


class Copies(NamedTuple):
    """Copies of one kind.

    Attributes:
        direction: "to the device", "to the host", "on the device", "other".
        memory: of the host: "pageable", "pinned", or empty.
        count, size_bytes: how many, how much.
        device_ns: how long they took there.
        host_ns: how long the calls that asked for them took.
    """

    direction: str
    memory: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    size_bytes: int
    device_ns: int
    host_ns: int


class Place(NamedTuple):
    """Where the host was: the open spans and the stack."""

    path: tuple[str, ...]
    stack: Stack


@dataclass
class GpuUse:
    """All windows of one process, as numbers.

    Attributes:
        pid: the process's.
        device: its name; the one that did the most.
        windows: those in which the device was used, and those in which it was not.
        ns: how long all of them were.
        busy_ns: in which a kernel ran, or a copy or a fill.
        gaps: the others.
        num_kernels, num_launches, num_graphs: kernels that ran; calls that launched one, or a whole
            graph; those that launched a graph.
        num_updates: spans of updates that ended; 0: there are none.
        kernel_ns: how long each kernel took, int64.
        copies: by kind.
        syncs_ns: how long the host waited within each synchronisation, int64.
        in_gaps, in_syncs, in_copies: where the host was in gaps that are its own, in calls that
            wait, and in calls that copy from pageable memory: nanoseconds by place.
        at_all: the same of all of the windows.
        kernels: nanoseconds by kernel's name.
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
    in_gaps: dict[Place, float] = field(default_factory=dict)
    in_syncs: dict[Place, float] = field(default_factory=dict)
    in_copies: dict[Place, float] = field(default_factory=dict)
    at_all: dict[Place, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """The share of the windows in which the device did something."""
        return self.busy_ns / self.ns if self.ns else 0.0

    @property
    def launches_per_s(self) -> float:
        """Calls a second that launched something."""
        return self.num_launches / self.ns * 1e9 if self.ns else 0.0

    @property
    def launches_per_update(self) -> float | None:
        """None: no update ended in any window."""
        return self.num_launches / self.num_updates if self.num_updates else None

    @property
    def median_kernel_ns(self) -> float:
        """NaN: there was none."""
        return float(np.median(self.kernel_ns)) if len(self.kernel_ns) else float("nan")

    def gaps_ns(self, *why: str) -> int:
        """How long gaps of some kinds were together."""
        return sum(gap.ns for gap in self.gaps if gap.why in why)


def gpu_use(session: Session) -> GpuUse | None:
    """Of the process that uses a GPU most; None: there are no windows."""
    by_pid: dict[int, list[GpuWindow]] = {}
    for one in session.gpu:
        by_pid.setdefault(one.pid, []).append(one)
    if not by_pid:
        return None
    return use_of(max(by_pid.values(), key=lambda them: sum(len(one.calls) for one in them)))


def use_of(windows: Sequence[GpuWindow]) -> GpuUse:
    """Of the windows of one process."""
    work = np.concatenate([one.work for one in windows])
    devices, counts = np.unique(work["device"], return_counts=True)
    number = int(devices[np.argmax(counts)]) if len(devices) else 0
    names = windows[0].devices
    name = names[number] if 0 <= number < len(names) else f"GPU {number}"
    found = GpuUse(
        pid=windows[0].pid,
        device=name,
        windows=list(windows),
        ns=sum(one.duration_ns for one in windows),
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
    for one in windows:
        _add(found, one, one.work[one.work["device"] == number])
    return found


def _add(found: GpuUse, window: GpuWindow, work: np.ndarray) -> None:
    starts, ends = busy_times(work, window.start_ns, window.end_ns)
    found.busy_ns += int((ends - starts).sum())
    kernels = work[work["kind"] == KERNEL]
    took = kernels["end_ns"] - kernels["start_ns"]
    found.num_kernels += len(kernels)
    found.kernel_ns = np.concatenate((found.kernel_ns, took))
    for name, total in zip(*_sums(kernels["name"], took), strict=True):
        told = window.names[name]
        found.kernels[told] = found.kernels.get(told, 0) + int(total)
    graphs = window.named(_GRAPH)
    found.num_graphs += int(graphs.sum())
    found.num_launches += int((graphs | window.named(_LAUNCH)).sum())
    syncs = synchronisations(window)
    found.syncs_ns = np.concatenate((found.syncs_ns, syncs["end_ns"] - syncs["start_ns"]))
    gaps = list(_gaps(window, work, starts, ends, syncs))
    found.gaps += gaps
    thread = _busiest_thread(window)
    own = [gap for gap in gaps if gap.why != "device"]
    _add_places(found.in_gaps, window, thread, [(gap.start_ns, gap.end_ns) for gap in own])
    _add_places(found.in_syncs, window, None, _times_of(syncs), syncs["thread"])
    pageable = pageable_calls(window)
    _add_places(found.in_copies, window, None, _times_of(pageable), pageable["thread"])
    _add_places(found.at_all, window, thread, [(window.start_ns, window.end_ns)])


def busy_times(work: np.ndarray, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the times in which any of some work ran, int64; streams overlap."""
    if not len(work):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(work["start_ns"], kind="stable")
    starts = np.maximum(work["start_ns"][order], start_ns)
    reached = np.maximum.accumulate(np.minimum(work["end_ns"][order], end_ns))
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] > reached[:-1]
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(starts) - 1)
    return starts[begins], reached[lasts]


def synchronisations(window: GpuWindow) -> np.ndarray:
    """Calls that wait for the device, `CALL`; one that copies and one that waits for it are one."""
    to_pageable = _of_copies(window, "DtoH", "Pageable")
    # `cudaMemcpyAsync` to pageable memory returns when the bytes are there.
    calls = window.calls[window.named(_SYNC) | np.isin(window.calls["correlation"], to_pageable)]
    copies = set(to_pageable.tolist())
    kept: list[list[int]] = []
    for start, end, name, thread, correlation in calls.tolist():
        last = kept[-1] if kept else None
        if (
            last is not None
            and last[3] == thread
            and start - last[1] < _AT_ONCE_NS
            and last[4] in copies
        ):
            last[1] = max(last[1], end)
        else:
            kept.append([start, end, name, thread, correlation])
    return np.array([tuple(one) for one in kept], CALL)


def pageable_calls(window: GpuWindow) -> np.ndarray:
    """Calls that copy to the device from memory that the system may page out, `CALL`."""
    return window.calls[
        np.isin(window.calls["correlation"], _of_copies(window, "HtoD", "Pageable"))
    ]


def _of_copies(window: GpuWindow, *words: str) -> np.ndarray:
    """Correlations of copies whose name has all of some words."""
    fits = np.array([all(word in name for word in words) for name in window.names], bool)
    work = window.work
    if not len(fits):
        return np.zeros(0, np.int64)
    return work["correlation"][(work["kind"] == COPY) & fits[work["name"]]]


def _gaps(
    window: GpuWindow, work: np.ndarray, starts: np.ndarray, ends: np.ndarray, syncs: np.ndarray
) -> Iterator[Gap]:
    """Between times of work; those at the window's ends are of the host."""
    if not len(starts):
        yield Gap(window.start_ns, window.end_ns, "host")
        return
    if starts[0] > window.start_ns:
        yield Gap(window.start_ns, int(starts[0]), "host")
    calls = window.calls
    launched = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
    order = np.argsort(work["start_ns"], kind="stable")
    first = work[order][np.searchsorted(work["start_ns"][order], starts)]
    sync_ends = np.sort(syncs["end_ns"]).tolist()
    for end, start, correlation in zip(
        ends[:-1].tolist(), starts[1:].tolist(), first["correlation"][1:].tolist(), strict=True
    ):
        began = launched.get(correlation)
        if began is not None and began <= end:
            why = "device"
        else:
            # A synchronisation that ended when the device was done, and before it had more.
            at = bisect_left(sync_ends, end)
            has_waited = at < len(sync_ends) and sync_ends[at] <= start
            short = start - end <= SHORT_GAP_NS
            why = "sync" if has_waited and short else "launch" if short else "host"
            if has_waited and not short:
                # What the host does after it is its own, but for coming back and launching.
                back = min(start, sync_ends[at] + SHORT_GAP_NS)
                yield Gap(end, back, "sync")
                end = back
        if end < start:
            yield Gap(end, start, why)
    if ends[-1] < window.end_ns:
        yield Gap(int(ends[-1]), window.end_ns, "host")


def _add_places(
    found: dict[Place, float],
    window: GpuWindow,
    thread: int | None,
    times: Sequence[tuple[int, int]],
    threads: np.ndarray | None = None,
) -> None:
    """Add where a thread was in some times: each look stands for its share of them.

    Args:
        thread: whose looks count; None: of each time its own, in `threads`.
    """
    whole = sum(end - start for start, end in times)
    seen: list[np.void] = []
    for number in [thread] if threads is None else np.unique(threads).tolist():
        own = [time for i, time in enumerate(times) if threads is None or threads[i] == number]
        looks = window.looks[window.looks["thread"] == number]
        if not own or not len(looks):
            continue
        begins, ends = np.array(sorted(own), np.int64).T
        at = np.searchsorted(begins, looks["at_ns"], side="right") - 1
        within = (at >= 0) & (looks["at_ns"] < ends[np.maximum(at, 0)])
        seen += list(looks[within])
    for look in seen:
        place = Place(window.paths[look["path"]], window.stacks[look["stack"]])
        found[place] = found.get(place, 0.0) + whole / len(seen)


def _times_of(calls: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(calls["start_ns"].tolist(), calls["end_ns"].tolist(), strict=True))


def _busiest_thread(window: GpuWindow) -> int:
    """The one that calls CUDA most; without calls, the process's first."""
    numbers, counts = np.unique(window.calls["thread"], return_counts=True)
    # Autograd's threads launch for the one that waits for them, and have no Python.
    known = np.isin(numbers, window.looks["thread"])
    if not known.any():
        return window.pid
    return int(numbers[known][np.argmax(counts[known])])


def _num_updates(windows: Sequence[GpuWindow]) -> int:
    for name in UPDATES:
        count = sum(
            ended
            for one in windows
            for path, (ended, _) in one.spans.items()
            if path[-1] == name and name not in path[:-1]
        )
        if count:
            return count
    return 0


def _copies(windows: Sequence[GpuWindow], device: int) -> list[Copies]:
    found: dict[tuple[str, str], list[int]] = {}
    for window in windows:
        calls, work = window.calls, window.work
        copies = work[(work["kind"] == COPY) & (work["device"] == device)]
        order = np.argsort(calls["correlation"], kind="stable")
        took = np.append(calls["end_ns"] - calls["start_ns"], 0)
        at = np.searchsorted(calls["correlation"], copies["correlation"], sorter=order)
        at = np.append(order, len(calls))[at]
        is_known = np.append(calls["correlation"], -1)[at] == copies["correlation"]
        in_host = np.where(is_known, took[at], 0)
        for name in np.unique(copies["name"]).tolist():
            own = copies["name"] == name
            sums = found.setdefault(_kind_of_copy(window.names[name]), [0, 0, 0, 0])
            sums[0] += int(own.sum())
            sums[1] += int(copies["size_bytes"][own].sum())
            sums[2] += int((copies["end_ns"] - copies["start_ns"])[own].sum())
            sums[3] += int(in_host[own].sum())
    rows = [Copies(*kind, *sums) for kind, sums in found.items()]
    return sorted(rows, key=lambda one: -one.device_ns)


def _kind_of_copy(name: str) -> tuple[str, str]:
    """ "Memcpy HtoD (Pageable -> Device)": to the device, pageable."""
    directions = {"HtoD": "to the device", "DtoH": "to the host", "DtoD": "on the device"}
    direction = next((told for mark, told in directions.items() if mark in name), "other")
    memory = "pageable" if "Pageable" in name else "pinned" if "Pinned" in name else ""
    return direction, memory


def _sums(keys: np.ndarray, amounts: np.ndarray) -> tuple[list[int], list[int]]:
    """Sums by key."""
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, inverse, amounts)
    return unique.tolist(), sums.tolist()
