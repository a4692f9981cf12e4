"""Cost of lock-step: worker processes that wait for the slowest of them at every step.

A vector environment of processes sends an action to each process and continues after the last
result. A worker's busy time in such a step is the time in which it steps and resets its
environment. It then waits for the slowest worker:

    waste = Σ over steps Σ over workers (max − busy)
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import STEP_SPANS, ProfiledProcess, Session

# Spans of a worker that belong to its parent's step, unless they are within another such span.
_WORK_SPANS = (*STEP_SPANS, "env_reset", "vector_reset")
# Share of a worker's steps that must lie within its parent's steps, the same number in each. An
# independent worker has fewer such steps.
_MIN_MATCHED = 0.9


@dataclass(frozen=True)
class LockstepWaste:
    """Steps in which workers wait for each other. Arrays are int64, one element per step.

    Attributes:
        parent: name of the process that waits for the workers.
        workers: names of the workers, in the session's order.
        start_ns, end_ns: start and end of the parent's steps, CLOCK_MONOTONIC.
        slowest_ns: busy time of the slowest worker.
        busy_ns: busy time of all workers.
        waste_ns: Σ over workers (max − busy).
        times_slowest: number of steps in which a worker is the slowest, by name.
        typical_ns: median busy time of a worker in the steps with its participation, by name.
    """

    parent: str
    workers: tuple[str, ...]
    start_ns: np.ndarray
    end_ns: np.ndarray
    slowest_ns: np.ndarray
    busy_ns: np.ndarray
    waste_ns: np.ndarray
    times_slowest: dict[str, int]
    typical_ns: dict[str, float]

    @property
    def num_steps(self) -> int:
        """Number of recorded steps of the parent, only the latest ones if the recording is full."""
        return len(self.end_ns)

    @property
    def waste_share(self) -> float:
        """Share of waiting in the workers' time from a step's start to its slowest worker's end."""
        whole = int(self.busy_ns.sum() + self.waste_ns.sum())
        return int(self.waste_ns.sum()) / whole if whole else 0.0

    @property
    def speedup(self) -> float:
        """Speed-up of the same workers if none waits for another."""
        busy = int(self.busy_ns.sum())
        return 1 + int(self.waste_ns.sum()) / busy if busy else 1.0

    @property
    def always_slowest(self) -> SlowestWorker | None:
        """Worker that is the slowest in most steps, None if the slowest worker varies.

        Two equal workers are each the slowest in half of the steps. So it must be slowest more
        often than chance allows, and take 5 % longer than the others.
        """
        name = max(self.times_slowest, key=lambda worker: self.times_slowest[worker])
        chance = 1 / len(self.workers)
        by_chance = chance + 3 * math.sqrt(chance * (1 - chance) / self.num_steps)
        share = self.times_slowest[name] / self.num_steps
        if share <= max(0.5, by_chance):
            return None
        step_ns = self.typical_ns[name]
        other_ns = statistics.median(ns for x, ns in self.typical_ns.items() if x != name)
        return SlowestWorker(name, share, step_ns, other_ns) if step_ns > 1.05 * other_ns else None


class SlowestWorker(NamedTuple):
    """A worker that the others wait for.

    Attributes:
        name: name of the worker.
        share: share of the steps in which it is the slowest.
        step_ns: its busy time in a typical step.
        other_step_ns: busy time of a typical other worker.
    """

    name: str
    share: float
    step_ns: float
    other_step_ns: float


def lockstep(session: Session) -> LockstepWaste | None:
    """Return how long workers wait for the slowest of them, None without steps in lock-step.

    A worker's steps are matched with the parent's step that contains them. Counting steps is not
    enough, since a worker may start an episode instead of stepping. If the parent's steps are no
    longer in the recording, the k-th steps of workers with the same number of steps are matched.
    """
    spans_of = functools.cache(_worker_spans)  # sorts the events of a process
    wastes = [_by_parent(session, parent, spans_of) for parent in session.processes]
    return max(
        (waste for waste in wastes if waste is not None), key=lambda x: x.num_steps, default=None
    )


class _WorkerSpans(NamedTuple):
    """A worker's spans for its parent's steps, sorted by start, and the number of lost steps."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    is_step: np.ndarray
    num_steps: int
    num_lost: int


class _StepWindows(NamedTuple):
    """Time ranges of the steps of all workers, sorted by start and not nested."""

    start_ns: np.ndarray
    end_ns: np.ndarray


def _by_parent(
    session: Session, parent: ProfiledProcess, spans_of: Callable[[ProfiledProcess], _WorkerSpans]
) -> LockstepWaste | None:
    names = {path[-1] for path, node in parent.tree.walk() if node.count}
    # An unvectorized environment may use processes too, but only that of the main process counts:
    # other processes with one environment are workers themselves.
    name = "vector_step" if "vector_step" in names else "env_step"
    if name not in names or (name == "env_step" and parent is not session.main):
        return None
    workers = [
        (process.name, spans)
        for process in session.processes
        if process is not parent and (spans := spans_of(process)).num_steps
    ]
    if len(workers) < 2:
        return None
    windows = _windows_of(parent, name)
    if not len(windows.start_ns):
        windows = _counted_windows([spans for _, spans in workers])
    return _match(parent.name, windows, workers) if len(windows.start_ns) else None


def _is_outermost(path: tuple[str, ...], names: Sequence[str]) -> bool:
    return bool(path) and path[-1] in names and not any(name in names for name in path[:-1])


def _worker_spans(process: ProfiledProcess) -> _WorkerSpans:
    is_work = np.array([_is_outermost(place.path, _WORK_SPANS) for place in process.spans], bool)
    steps = np.array([bool(p.path) and p.path[-1] in STEP_SPANS for p in process.spans], bool)
    events = process.events[is_work[process.events["span"]]]
    events = events[np.argsort(events["start_ns"], kind="stable")]
    is_step = steps[events["span"]]
    count = int(np.count_nonzero(is_step))
    total = sum(
        node.count
        for path, node in process.tree.walk()
        if path[-1] in STEP_SPANS and _is_outermost(path, _WORK_SPANS)
    )
    return _WorkerSpans(events["start_ns"], events["end_ns"], is_step, count, max(0, total - count))


def _windows_of(parent: ProfiledProcess, name: str) -> _StepWindows:
    is_window = np.array(
        [bool(p.path) and p.path[-1] == name and name not in p.path[:-1] for p in parent.spans],
        bool,
    )
    events = parent.events[is_window[parent.events["span"]]]
    events = events[np.argsort(events["start_ns"], kind="stable")]
    return _StepWindows(events["start_ns"], events["end_ns"])


def _counted_windows(workers: Sequence[_WorkerSpans]) -> _StepWindows:
    """Return the k-th steps as windows, from the first start of a step to that of the next one."""
    counts = sorted(spans.num_steps + spans.num_lost for spans in workers)
    median = counts[len(counts) // 2]
    # Counts may differ by one, if the program ended within a step.
    matching = [x for x in workers if abs(x.num_steps + x.num_lost - median) <= 1]
    first = max(spans.num_lost for spans in matching)
    stop = min(spans.num_lost + spans.num_steps for spans in matching)
    if stop <= first:
        return _StepWindows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    kth = [
        np.stack((spans.start_ns[spans.is_step], spans.end_ns[spans.is_step]))[
            :, first - spans.num_lost : stop - spans.num_lost
        ]
        for spans in matching
    ]
    starts = np.min([start for start, _ in kth], axis=0)
    next_starts = np.append(starts[1:], np.max([end[-1] for _, end in kth]))
    # A window ends with its last worker span, since the time up to the next one is the parent's.
    ends = starts.copy()
    for spans in matching:
        window = np.searchsorted(starts, spans.start_ns, side="right") - 1
        fits = (window >= 0) & (spans.end_ns <= next_starts[np.maximum(window, 0)])
        np.maximum.at(ends, window[fits], spans.end_ns[fits])
    return _StepWindows(starts, ends)


def _match(
    parent: str, windows: _StepWindows, workers: Sequence[tuple[str, _WorkerSpans]]
) -> LockstepWaste | None:
    """Return the waste in the windows with two or more workers and complete recordings."""
    # Collect the busy times of the workers.
    names: list[str] = []
    busy_times: list[np.ndarray] = []
    participations: list[np.ndarray] = []
    first = 0
    for name, spans in workers:
        times = _busy_times(windows, spans)
        if times is None:
            continue
        names.append(name)
        busy_times.append(times[0])
        participations.append(times[1])
        if spans.num_lost:
            start_ns = spans.start_ns[spans.is_step][0]
            first = max(first, int(np.searchsorted(windows.start_ns, start_ns, side="right")) - 1)
    if len(names) < 2:
        return None
    # Keep the steps with two or more workers and complete recordings.
    takes_part = np.stack(participations)
    busy = np.where(takes_part, np.stack(busy_times), 0)
    num_workers = takes_part.sum(0)
    is_complete = num_workers >= 2
    is_complete[:first] = False
    if not is_complete.any():
        return None
    # Sum the waste of each step.
    busy, num_workers = busy[:, is_complete], num_workers[is_complete]
    slowest = busy.max(0)
    counts = np.bincount(busy.argmax(0), minlength=len(names))
    typical = [
        float(np.median(row[mask])) if mask.any() else 0.0
        for row, mask in zip(busy, takes_part[:, is_complete], strict=True)
    ]
    return LockstepWaste(
        parent,
        tuple(names),
        windows.start_ns[is_complete],
        windows.end_ns[is_complete],
        slowest,
        busy.sum(0),
        slowest * num_workers - busy.sum(0),
        dict(zip(names, counts.tolist(), strict=True)),
        dict(zip(names, typical, strict=True)),
    )


def _busy_times(windows: _StepWindows, spans: _WorkerSpans) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a worker's busy time and participation by window, None if it does not step in them."""
    starts, ends = windows
    window = np.searchsorted(starts, spans.start_ns, side="right") - 1
    fits = (window >= 0) & (spans.end_ns <= ends[np.maximum(window, 0)])
    covered = spans.is_step & (spans.start_ns >= starts[0]) & (spans.end_ns <= ends[-1])
    stepped = fits & spans.is_step
    num_covered = np.count_nonzero(covered)
    if not num_covered or np.count_nonzero(stepped & covered) < _MIN_MATCHED * num_covered:
        return None
    per_window = np.bincount(window[stepped], minlength=len(starts))
    per_window = per_window[per_window > 0]
    if np.count_nonzero(per_window == int(np.median(per_window))) < _MIN_MATCHED * len(per_window):
        return None
    busy = np.zeros(len(starts), np.int64)
    np.add.at(busy, window[fits], (spans.end_ns - spans.start_ns)[fits])
    return busy, np.bincount(window[fits], minlength=len(starts)) > 0
