"""Conversion of other profilers' stacks to a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hotloop.errors import ProfileError
from hotloop.profiler.session import (
    Frame,
    Period,
    ProfiledProcess,
    Sample,
    Session,
    SpanThread,
    Stack,
    ThreadTotals,
)
from hotloop.profiler.session.other_profilers.places import file_finder, function_of
from hotloop.profiler.session.other_profilers.stacks import (
    MAIN,
    OtherProfile,
    SpanEvent,
    StackSample,
    without_middle,
)
from hotloop.timing import Node
from hotloop.timing import _format as fmt
from hotloop.timing._fold import fold
from hotloop.timing.reader import EVENT, SpanPath

# hotloop's sampler thread, which other profilers count as busy.
_OUR_SAMPLER = "hotloop/profiler/collect/sampler.py"
# Characters that are kept of names. A document may refer to one name from all of its frames.
_MAX_NAME, _MAX_PATH = 1_000, 4_096
_PERIOD_NS = 1_000_000_000
# Processes that work for a smaller share of the main process's time are helpers.
_WORKER_SHARE = 0.01


@dataclass
class _Thread:
    """Sums of one thread: count, time on a core and elapsed time by path and stack."""

    rows: dict[tuple[tuple[str, ...], int], list[int]] = field(default_factory=dict)
    periods: dict[int, dict[tuple[tuple[str, ...], int], int]] = field(default_factory=dict)
    ns: int = 0
    on_core_ns: int = 0


@dataclass
class _Process:
    """The threads of a process by name, with the stacks that they share."""

    threads: dict[str, _Thread] = field(default_factory=dict)
    stacks: dict[Stack, int] = field(default_factory=dict)
    first_ns: int = -1
    last_ns: int = -1

    def main_thread(self) -> str:
        """Return the main thread, or the busiest one if the format does not name it."""
        if "" in self.threads:
            return ""
        return max(self.threads, key=lambda name: self.threads[name].ns)


def to_session(profile: OtherProfile, path: Path) -> Session:
    """Return the session of a recording.

    Raises:
        ProfileError: It has no stacks.
    """
    sums = _sum(profile, path)
    if not sums:
        raise ProfileError(f"expected stacks of {profile.tool} in {path}, got none: record again")
    # The main process is the one without a parent that has the most time.
    ns = {name: max(thread.ns for thread in x.threads.values()) for name, x in sums.items()}
    parents = {name: profile.parents.get(name, name) for name in sums}
    roots = [name for name, parent in parents.items() if parent == name or parent not in sums]
    main = max(roots or list(sums), key=lambda name: ns[name])
    names = [main, *(name for name in sums if name != main)]
    whole_ns = max(ns.values())
    # Assign process ids and roles.
    pids: dict[str, int] = {}
    used_pids: set[int] = set()
    largest = 0
    for name in names:
        pid = profile.pids.get(name, 0)
        if not 0 < pid < 2**31 or pid in used_pids:
            pid = largest + 1
        pids[name], largest = pid, max(largest, pid)
        used_pids.add(pid)
    spans: dict[str, list[SpanEvent]] = {}
    for span in profile.spans:
        spans.setdefault(span.process, []).append(span)
    processes: list[ProfiledProcess] = []
    num_workers = 0
    for number, name in enumerate(names):
        is_worker = number > 0 and ns[name] >= _WORKER_SHARE * ns[main]
        num_workers += is_worker
        process = _process(sums[name], pids[name], whole_ns, profile.interval_ns)
        process.name = name
        if name == f"process {pids[name]}":
            label = f"worker-{num_workers - 1}" if is_worker else f"process ({pids[name]})"
            process.name = label if number else MAIN
        process.role = "worker" if is_worker else "helper" if number else "main"
        process.parent_pid = pids.get(profile.parents.get(name, main), 0) if number else 0
        process.command = profile.commands.get(name, [])
        _add_spans(process, spans.get(name, []))
        processes.append(process)
    missing = [f"recorded by {profile.tool}: {sentence}" for sentence in profile.missing]
    recorded_s = path.stat().st_mtime - whole_ns / 1e9
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(max(0.0, recorded_s)))
    return Session(
        str(path),
        {
            "command": profile.commands.get(main) or [path.name],
            "recorded_by": profile.tool,
            "started": started,
        },
        processes,
        problems=missing,
        gpu=[window for window in profile.windows if window.pid in pids.values()],
    )


def _sum(profile: OtherProfile, path: Path) -> dict[str, _Process]:
    """Return the sums by process."""
    finder = file_finder(path.absolute().parent, has_folders=profile.has_folders)
    stacks: dict[tuple[Frame, ...], Stack] = {}
    sums: dict[str, _Process] = {}
    for sample in profile.samples:
        if sample.ns <= 0 or any(frame.file.endswith(_OUR_SAMPLER) for frame in sample.frames):
            continue
        stack = stacks.get(sample.frames)
        if stack is None:
            stack = stacks[sample.frames] = _stack(sample, profile, finder)
        process = sums.setdefault(sample.process, _Process())
        thread = process.threads.setdefault(sample.thread, _Thread())
        key = sample.path, process.stacks.setdefault(stack, len(process.stacks))
        row = thread.rows.setdefault(key, [0, 0])
        on_core_ns = 0 if sample.is_idle else sample.ns
        row[0] += sample.ns
        row[1] += on_core_ns
        thread.ns += sample.ns
        thread.on_core_ns += on_core_ns
        if sample.end_ns >= 0:
            start_ns = max(0, sample.end_ns - sample.ns)
            process.first_ns = (
                min(process.first_ns, start_ns) if process.first_ns >= 0 else start_ns
            )
            process.last_ns = max(process.last_ns, sample.end_ns)
            period = thread.periods.setdefault(sample.end_ns // _PERIOD_NS, {})
            period[key] = period.get(key, 0) + sample.ns
    return sums


def _stack(sample: StackSample, profile: OtherProfile, finder: Callable[[str], str]) -> Stack:
    frames = without_middle(sample.frames) or (Frame("(no Python)", "<unknown>", 0),)
    pairs = [
        function_of(
            frame._replace(
                function=frame.function[:_MAX_NAME], file=finder(frame.file[:_MAX_PATH])
            ),
            is_first_line=profile.has_first_lines,
        )
        for frame in frames
    ]
    return Stack(tuple(frame for frame, _ in pairs), tuple(line for _, line in pairs))


def _process(sums: _Process, pid: int, whole_ns: int, interval_ns: int) -> ProfiledProcess:
    """Return a process. Without times of day, it lasts as long as the longest one's samples."""
    main = sums.main_thread()
    first_ns, last_ns = (sums.first_ns, sums.last_ns) if sums.last_ns >= 0 else (0, whole_ns)
    process = ProfiledProcess(
        "", "helper", pid, 0, "complete", first_ns, last_ns, interval_ns=interval_ns
    )
    process.tree = Node("", total_ns=process.duration_ns)
    process.stacks = list(sums.stacks)
    for number, (name, thread) in enumerate(sums.threads.items(), 1):
        # Numbers of threads differ from those of processes.
        thread_number = pid if name == main else (1 << 40) + number
        process.threads.append(ThreadTotals(thread_number, name, thread.on_core_ns, 0))
        process.samples += [
            Sample(thread_number, path, stack, max(1, round(ns / interval_ns)), on_core_ns, 0, ns)
            for (path, stack), (ns, on_core_ns) in thread.rows.items()
        ]
    # Without times of day, the whole recording is one period.
    in_all = {0: {key: ns for key, (ns, _) in sums.threads[main].rows.items()}}
    for second, rows in sorted((sums.threads[main].periods or in_all).items()):
        by_path: dict[tuple[str, ...], int] = {}
        by_stack: dict[int, int] = {}
        for (path, stack), ns in rows.items():
            count = max(1, round(ns / interval_ns))
            by_path[path] = by_path.get(path, 0) + count
            by_stack[stack] = by_stack.get(stack, 0) + count
        has_times = bool(sums.threads[main].periods)
        period_end_ns = min(last_ns, (second + 1) * _PERIOD_NS) if has_times else last_ns
        process.periods.append(Period(period_end_ns, {}, 0, 0, by_path, by_stack))
    return process


def _add_spans(process: ProfiledProcess, spans: Sequence[SpanEvent]) -> None:
    """Add the spans of a process to its tree and its events."""
    if not spans:
        return
    paths: dict[tuple[str, ...], int] = {}
    numbers = np.array([paths.setdefault(span.path, len(paths)) for span in spans], np.int64)
    start_ns = np.array([span.start_ns for span in spans], np.int64)
    end_ns = np.array([span.end_ns for span in spans], np.int64)
    by_path = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    for path, rows in zip(paths, by_path, strict=True):
        row = np.zeros((1, fmt.ROW_WORDS), np.int64)
        fold(row, np.zeros(len(rows), np.int64), start_ns[rows], end_ns[rows])
        node = process.tree
        for part in path:
            node = node.child(part)
        count, total_ns, min_ns, max_ns = map(int, row[0, :4])
        node.add(Node("", "work", count, total_ns, min_ns, max_ns, histogram=row[0, fmt.T_HIST :]))
    process.spans = [SpanPath(path, "work", 0) for path in paths]
    process.span_threads = [SpanThread(process.pid, "")]
    process.events = np.zeros(len(spans), EVENT)
    process.events["start_ns"], process.events["end_ns"] = start_ns, end_ns
    process.events["span"] = numbers
    process.events["depth"] = [len(span.path) for span in spans]
    process.events = process.events[np.argsort(end_ns, kind="stable")]
