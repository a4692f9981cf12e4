"""The course of a session: what it did in each stretch of about a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.stages import path_weights, stage_by_key
from hotloop.profiler.session.throughput import steps_by_path
from hotloop.statistics import Floats

Path = tuple[str, ...]

MAX_STRETCHES = 240


class Component(NamedTuple):
    """Spans of a process, or of several together, by stretch.

    Attributes:
        counts, total_ns: float64, (P,) each, by path.
        lived_ns: float64, (P,): time of its processes.
    """

    counts: dict[Path, Floats]
    total_ns: dict[Path, Floats]
    lived_ns: Floats

    def part(self, chosen: slice) -> Component:
        """Of some stretches alone."""
        return Component(
            {path: one[chosen] for path, one in self.counts.items()},
            {path: one[chosen] for path, one in self.total_ns.items()},
            self.lived_ns[chosen],
        )


@dataclass(frozen=True)
class Course:
    """A session cut into stretches of time.

    Attributes:
        session: the session.
        by_events: there were no samples: the stretches are those of the latest events.
        seconds: float64, (P,).
        steps: float64, (P,): environment steps.
        components: by name.
        stage_ns: float64, (P,), of the main thread, by stage.
    """

    session: Session
    by_events: bool
    seconds: Floats
    steps: Floats
    components: dict[str, Component]
    stage_ns: dict[str, Floats]


def course_of(session: Session) -> Course:
    """Cut a session into stretches of about a second."""
    main = session.main
    by_events = not any(period.spans for period in main.periods) and any(
        len(process.events) for process in session.processes
    )
    edges = _edges_of_events(session) if by_events else _edges_of_periods(main)
    factors = steps_by_path(session)
    steps = np.zeros(len(edges) - 1)
    lived: dict[str, Floats] = {}
    counts: dict[str, dict[Path, Floats]] = {}
    total_ns: dict[str, dict[Path, Floats]] = {}
    for process in session.processes:
        own = (_from_events if by_events else _from_periods)(process, edges)
        for path, (ended, _) in own.items():
            steps = steps + factors[process.pid].get(path, 0.0) * ended
        if not own:
            continue
        name = process.role if process is main else process.name
        name = "workers" if process.role == "worker" else name
        lived[name] = lived.get(name, 0.0) + np.diff(
            np.clip(edges, process.start_ns, process.end_ns)
        )
        for path, (ended, passed) in own.items():
            for sums, amounts in ((counts, ended), (total_ns, passed)):
                of_name = sums.setdefault(name, {})
                of_name[path] = of_name.get(path, 0.0) + amounts
    return Course(
        session,
        by_events,
        np.diff(edges) / 1e9,
        steps,
        {name: Component(counts[name], total_ns[name], lived[name]) for name in counts},
        _stage_ns(main, edges),
    )


def between_steps(course: Course) -> Course:
    """Without what came before the first step and after the last: starting, and saving."""
    at = np.flatnonzero(course.steps)
    chosen = slice(int(at[0]), int(at[-1]) + 1)
    return replace(
        course,
        seconds=course.seconds[chosen],
        steps=course.steps[chosen],
        components={name: one.part(chosen) for name, one in course.components.items()},
        stage_ns={stage: one[chosen] for stage, one in course.stage_ns.items()},
    )


def _edges_of_periods(main: Process) -> Floats:
    """The main process's own periods, some of them together where there are many."""
    ends = np.array([main.start_ns, *(period.end_ns for period in main.periods)], np.float64)
    chosen = np.linspace(0, len(ends) - 1, min(len(ends), MAX_STRETCHES + 1)).round()
    return ends[chosen.astype(int)]


def _edges_of_events(session: Session) -> Floats:
    """Equal stretches over the time that all processes' events are still known of."""
    known = [process.events for process in session.processes if len(process.events)]
    first = max(int(events["start_ns"].min()) for events in known)
    last = min(int(events["end_ns"].max()) for events in known)
    num_stretches = int(min(MAX_STRETCHES, max(1, (last - first) // 200_000_000)))
    return np.linspace(first, max(first + 1, last), num_stretches + 1)


def _from_periods(process: Process, edges: Floats) -> dict[Path, tuple[Floats, Floats]]:
    """Counts and ns of every path between the edges, evenly spread over each of its periods."""
    times = np.array([process.start_ns, *(one.end_ns for one in process.periods)], np.float64)
    found: dict[Path, tuple[Floats, Floats]] = {}
    for path in sorted({path for period in process.periods for path in period.spans}):
        rows = np.array(
            [(0, 0), *(period.spans.get(path, (0, 0)) for period in process.periods)], np.float64
        )
        grown = np.diff(rows, axis=0)
        # A program that began another recording counts from zero again.
        grown = np.where(grown < 0, rows[1:], grown)
        sums = np.concatenate((rows[:1], np.cumsum(grown, axis=0)))
        found[path] = (
            np.diff(np.interp(edges, times, sums[:, 0])),
            np.diff(np.interp(edges, times, sums[:, 1])),
        )
    return found


def _from_events(process: Process, edges: Floats) -> dict[Path, tuple[Floats, Floats]]:
    """The same of events: a span counts where it ended, its time where it passed."""
    found: dict[Path, tuple[Floats, Floats]] = {}
    for number, place in enumerate(process.spans):
        events = process.events[process.events["span"] == number]
        if not place.path or not len(events):
            continue
        starts = events["start_ns"].astype(np.float64)
        lengths = events["end_ns"] - starts
        ended = np.histogram(events["end_ns"], edges)[0].astype(np.float64)
        passed = np.diff([np.clip(edge - starts, 0.0, lengths).sum() for edge in edges])
        before = found.get(place.path, (0.0, 0.0))
        found[place.path] = before[0] + ended, before[1] + passed
    return found


def _stage_ns(main: Process, edges: Floats) -> dict[str, Floats]:
    """Time of the main thread by stage: of each period's samples, and what they stand for."""
    times = np.array([main.start_ns, *(one.end_ns for one in main.periods)], np.float64)
    stage_of, weights = stage_by_key(main), path_weights(main, main.pid)
    # What the samples of a stack stand for, by stage, and how many there are.
    worth: dict[int, dict[str, float]] = {}
    counts: dict[int, int] = {}
    for sample in main.samples:
        if sample.thread == main.pid:
            by_stage = worth.setdefault(sample.stack, {})
            stage = stage_of[sample.path, sample.stack]
            ns = weights.get(sample.path, 1.0) * sample.elapsed_ns
            by_stage[stage] = by_stage.get(stage, 0.0) + ns
            counts[sample.stack] = counts.get(sample.stack, 0) + sample.count
    by_period: dict[str, Floats] = {}
    for number, period in enumerate(main.periods, 1):
        for stack, count in period.by_stack.items():
            for stage, ns in worth.get(stack, {}).items():
                amounts = by_period.setdefault(stage, np.zeros(len(times)))
                amounts[number] += ns * count / counts[stack]
    return {
        stage: np.diff(np.interp(edges, times, np.cumsum(amounts)))
        for stage, amounts in by_period.items()
    }
