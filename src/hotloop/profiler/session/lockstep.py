"""The cost of lock-step: worker processes wait for the slowest of them at every step.

A vector environment of processes sends an action to each of them and goes on when the last one has
answered. A worker's own part of such a step is the time in which it stepped, and reset, its
environment; up to the slowest one's it waits:

    waste = Σ over steps Σ over workers (max − own)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import STEPS, Process, Session

# What a worker does for its parent's step, where it is not within another one of them.
_TURNS = (*STEPS, "env_reset", "vector_reset")
# Of a worker's steps, so many must lie within one of the parent's each, equally many in each: a
# worker that goes its own way does so by chance alone.
_MOST = 0.9


@dataclass(frozen=True)
class LockstepWaste:
    """Steps in which workers waited for each other. Arrays have one element a step, of int64.

    Attributes:
        parent: name of the process that waits for all of them.
        workers: names, in the session's order.
        start_ns, end_ns: of the parent's step, CLOCK_MONOTONIC.
        slowest_ns: own time of the slowest worker.
        busy_ns: own times of all workers.
        waste_ns: Σ over workers (max − own).
        times_slowest: by worker, in how many steps it was the slowest.
        typical_ns: by worker, the median of its own times in the steps that it took part in.
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
        """Steps of the parent that are known of: the latest ones, where the recording forgets."""
        return len(self.end_ns)

    @property
    def share(self) -> float:
        """Of the time from a step's begin to its slowest worker's end, what workers waited."""
        whole = int(self.busy_ns.sum() + self.waste_ns.sum())
        return int(self.waste_ns.sum()) / whole if whole else 0.0

    @property
    def speedup(self) -> float:
        """How many times faster the same workers step if none waits for another."""
        busy = int(self.busy_ns.sum())
        return 1 + int(self.waste_ns.sum()) / busy if busy else 1.0

    @property
    def always_slowest(self) -> Slowest | None:
        """The worker that is the slowest in most steps; None: now it is one, now another.

        Of two alike, either is in half of the steps: it must be more often than chance allows, and
        slower by more than a twentieth, else nobody waits for long.
        """
        name = max(self.times_slowest, key=lambda one: self.times_slowest[one])
        chance = 1 / len(self.workers)
        by_chance = chance + 3 * math.sqrt(chance * (1 - chance) / self.num_steps)
        share = self.times_slowest[name] / self.num_steps
        if share <= max(0.5, by_chance):
            return None
        own = self.typical_ns[name]
        others = statistics.median(ns for one, ns in self.typical_ns.items() if one != name)
        return Slowest(name, share, own, others) if own > 1.05 * others else None


class Slowest(NamedTuple):
    """A worker that the others wait for.

    Attributes:
        name: the worker's.
        share: of the steps, in which it was the slowest.
        own_ns: its own time in a typical step.
        others_ns: that of a typical other worker.
    """

    name: str
    share: float
    own_ns: float
    others_ns: float


def lockstep(session: Session) -> LockstepWaste | None:
    """What workers waited for the slowest of them; None where none are stepped in lock-step.

    A worker's steps are matched with the step of its parent that they lie in: its own count of them
    would not do, since a worker that begins an episode may do that instead of a step. Where the
    parent's steps are forgotten, the k-th steps of workers that made equally many are matched.
    """
    found = [_by_parent(session, parent) for parent in session.processes]
    return max(
        (one for one in found if one is not None), key=lambda one: one.num_steps, default=None
    )


class _Turns(NamedTuple):
    """What a process did for its parent's steps, by start, and how many steps are forgotten."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    is_step: np.ndarray
    num_steps: int
    num_forgotten: int


class _Windows(NamedTuple):
    """From where to where a step of all workers goes; by start, and none within another."""

    start_ns: np.ndarray
    end_ns: np.ndarray


def _by_parent(session: Session, parent: Process) -> LockstepWaste | None:
    names = {path[-1] for path, node in parent.tree.walk() if node.count}
    # Somebody's own environment may hide processes too; of the others, those with one environment
    # are workers themselves.
    name = "vector_step" if "vector_step" in names else "env_step"
    if name not in names or (name == "env_step" and parent is not session.main):
        return None
    workers = [
        (one.name, turns)
        for one in session.processes
        if one is not parent and (turns := _turns(one)).num_steps
    ]
    if len(workers) < 2:
        return None
    windows = _windows_of(parent, name)
    if not len(windows.start_ns):
        windows = _counted_windows([turns for _, turns in workers])
    return _match(parent.name, windows, workers) if len(windows.start_ns) else None


def _is_outermost(path: tuple[str, ...], names: Sequence[str]) -> bool:
    return bool(path) and path[-1] in names and not any(name in names for name in path[:-1])


def _turns(process: Process) -> _Turns:
    wanted = np.array([_is_outermost(place.path, _TURNS) for place in process.spans], bool)
    steps = np.array([bool(p.path) and p.path[-1] in STEPS for p in process.spans], bool)
    events = process.events[wanted[process.events["span"]]]
    events = events[np.argsort(events["start_ns"], kind="stable")]
    is_step = steps[events["span"]]
    known = int(np.count_nonzero(is_step))
    total = sum(
        node.count
        for path, node in process.tree.walk()
        if path[-1] in STEPS and _is_outermost(path, _TURNS)
    )
    return _Turns(events["start_ns"], events["end_ns"], is_step, known, max(0, total - known))


def _windows_of(parent: Process, name: str) -> _Windows:
    wanted = np.array(
        [bool(p.path) and p.path[-1] == name and name not in p.path[:-1] for p in parent.spans],
        bool,
    )
    events = parent.events[wanted[parent.events["span"]]]
    events = events[np.argsort(events["start_ns"], kind="stable")]
    return _Windows(events["start_ns"], events["end_ns"])


def _counted_windows(workers: Sequence[_Turns]) -> _Windows:
    """From the first start of a k-th step to the first start of the next one."""
    counts = sorted(turns.num_steps + turns.num_forgotten for turns in workers)
    usual = counts[len(counts) // 2]
    # One more or less: the program ended in mid-step.
    alike = [t for t in workers if abs(t.num_steps + t.num_forgotten - usual) <= 1]
    first = max(turns.num_forgotten for turns in alike)
    stop = min(turns.num_forgotten + turns.num_steps for turns in alike)
    if stop <= first:
        return _Windows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    kth = [
        np.stack((turns.start_ns[turns.is_step], turns.end_ns[turns.is_step]))[
            :, first - turns.num_forgotten : stop - turns.num_forgotten
        ]
        for turns in alike
    ]
    starts = np.min([start for start, _ in kth], axis=0)
    until = np.append(starts[1:], np.max([end[-1] for _, end in kth]))
    # It ends with the last of what workers did in it: the time up to the next one is the parent's.
    ends = starts.copy()
    for turns in alike:
        window = np.searchsorted(starts, turns.start_ns, side="right") - 1
        fits = (window >= 0) & (turns.end_ns <= until[np.maximum(window, 0)])
        np.maximum.at(ends, window[fits], turns.end_ns[fits])
    return _Windows(starts, ends)


def _match(
    parent: str, windows: _Windows, workers: Sequence[tuple[str, _Turns]]
) -> LockstepWaste | None:
    names: list[str] = []
    own: list[np.ndarray] = []
    took_part: list[np.ndarray] = []
    first = 0
    for name, turns in workers:
        mine = _own_times(windows, turns)
        if mine is None:
            continue
        names.append(name)
        own.append(mine[0])
        took_part.append(mine[1])
        if turns.num_forgotten:
            begun = turns.start_ns[turns.is_step][0]
            first = max(first, int(np.searchsorted(windows.start_ns, begun, side="right")) - 1)
    if len(names) < 2:
        return None
    part = np.stack(took_part)
    busy = np.where(part, np.stack(own), 0)
    number = part.sum(0)
    known = number >= 2
    known[:first] = False
    if not known.any():
        return None
    busy, number = busy[:, known], number[known]
    slowest = busy.max(0)
    times = np.bincount(busy.argmax(0), minlength=len(names))
    typical = [
        float(np.median(row[here])) if here.any() else 0.0
        for row, here in zip(busy, part[:, known], strict=True)
    ]
    return LockstepWaste(
        parent,
        tuple(names),
        windows.start_ns[known],
        windows.end_ns[known],
        slowest,
        busy.sum(0),
        slowest * number - busy.sum(0),
        dict(zip(names, times.tolist(), strict=True)),
        dict(zip(names, typical, strict=True)),
    )


def _own_times(windows: _Windows, turns: _Turns) -> tuple[np.ndarray, np.ndarray] | None:
    """A worker's own time in each window, and whether it took part; None: it goes its own way."""
    starts, ends = windows
    window = np.searchsorted(starts, turns.start_ns, side="right") - 1
    fits = (window >= 0) & (turns.end_ns <= ends[np.maximum(window, 0)])
    covered = turns.is_step & (turns.start_ns >= starts[0]) & (turns.end_ns <= ends[-1])
    stepped = fits & turns.is_step
    num_covered = np.count_nonzero(covered)
    if not num_covered or np.count_nonzero(stepped & covered) < _MOST * num_covered:
        return None
    per_window = np.bincount(window[stepped], minlength=len(starts))
    per_window = per_window[per_window > 0]
    if np.count_nonzero(per_window == int(np.median(per_window))) < _MOST * len(per_window):
        return None
    own = np.zeros(len(starts), np.int64)
    np.add.at(own, window[fits], (turns.end_ns - turns.start_ns)[fits])
    return own, np.bincount(window[fits], minlength=len(starts)) > 0
