"""The timeline of a session: spans, steps and stages in intervals of about a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hotloop.base.statistics import Floats
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.stages import path_weights, stage_by_key
from hotloop.profiler.session.throughput import steps_by_path

Path = tuple[str, ...]

MAX_INTERVALS = 240


class ComponentSpans(NamedTuple):
    """Spans of one process or a group of processes, by interval.

    Attributes:
        counts, total_ns: float64 (P,), by path.
        lifetime_ns: float64 (P,), total lifetime of its processes.
    """

    counts: dict[Path, Floats]
    total_ns: dict[Path, Floats]
    lifetime_ns: Floats

    def select(self, indices: slice) -> ComponentSpans:
        """Return the component restricted to some intervals."""
        return ComponentSpans(
            {path: series[indices] for path, series in self.counts.items()},
            {path: series[indices] for path, series in self.total_ns.items()},
            self.lifetime_ns[indices],
        )


@dataclass(frozen=True)
class Timeline:
    """A session divided into P intervals of time.

    Attributes:
        session: the session.
        uses_events: whether the intervals cover only the latest events, for lack of samples.
        durations_s: float64 (P,).
        steps: float64 (P,), environment steps.
        components: spans by name of the component.
        stage_ns: float64 (P,), time of the main thread, by stage.
    """

    session: Session
    uses_events: bool
    durations_s: Floats
    steps: Floats
    components: dict[str, ComponentSpans]
    stage_ns: dict[str, Floats]


def build_timeline(session: Session) -> Timeline:
    """Divide a session into intervals of about a second."""
    main = session.main
    uses_events = not any(period.spans for period in main.periods) and any(
        len(process.events) for process in session.processes
    )
    edges = _event_edges(session) if uses_events else _period_edges(main)
    steps_per_span = steps_by_path(session)
    steps = np.zeros(len(edges) - 1)
    lifetime_ns: dict[str, Floats] = {}
    counts: dict[str, dict[Path, Floats]] = {}
    total_ns: dict[str, dict[Path, Floats]] = {}
    for process in session.processes:
        spans = (_from_events if uses_events else _from_periods)(process, edges)
        for path, (num_ended, _) in spans.items():
            steps = steps + steps_per_span[process.pid].get(path, 0.0) * num_ended
        if not spans:
            continue
        name = process.role if process is main else process.name
        name = "workers" if process.role == "worker" else name
        lifetime_ns[name] = lifetime_ns.get(name, 0.0) + np.diff(
            np.clip(edges, process.start_ns, process.end_ns)
        )
        for path, (num_ended, elapsed) in spans.items():
            for series_by_name, amounts in ((counts, num_ended), (total_ns, elapsed)):
                component = series_by_name.setdefault(name, {})
                component[path] = component.get(path, 0.0) + amounts
    return Timeline(
        session,
        uses_events,
        np.diff(edges) / 1e9,
        steps,
        {name: ComponentSpans(counts[name], total_ns[name], lifetime_ns[name]) for name in counts},
        _stage_ns(main, edges),
    )


def trim_to_steps(timeline: Timeline) -> Timeline:
    """Return the timeline from the first to the last step, without starting and saving."""
    step_indices = np.flatnonzero(timeline.steps)
    indices = slice(int(step_indices[0]), int(step_indices[-1]) + 1)
    return replace(
        timeline,
        durations_s=timeline.durations_s[indices],
        steps=timeline.steps[indices],
        components={name: series.select(indices) for name, series in timeline.components.items()},
        stage_ns={stage: series[indices] for stage, series in timeline.stage_ns.items()},
    )


def _period_edges(main: ProfiledProcess) -> Floats:
    """Return the edges of the main process's periods, merged if there are many."""
    ends = np.array([main.start_ns, *(period.end_ns for period in main.periods)], np.float64)
    indices = np.linspace(0, len(ends) - 1, min(len(ends), MAX_INTERVALS + 1)).round()
    return ends[indices.astype(int)]


def _event_edges(session: Session) -> Floats:
    """Return equally spaced edges over the time in which all processes have events."""
    all_events = [process.events for process in session.processes if len(process.events)]
    first = max(int(events["start_ns"].min()) for events in all_events)
    last = min(int(events["end_ns"].max()) for events in all_events)
    num_intervals = int(min(MAX_INTERVALS, max(1, (last - first) // 200_000_000)))
    return np.linspace(first, max(first + 1, last), num_intervals + 1)


def _from_periods(process: ProfiledProcess, edges: Floats) -> dict[Path, tuple[Floats, Floats]]:
    """Return counts and ns of each path between the edges, spread evenly within periods."""
    times = np.array([process.start_ns, *(period.end_ns for period in process.periods)], np.float64)
    series: dict[Path, tuple[Floats, Floats]] = {}
    for path in sorted({path for period in process.periods for path in period.spans}):
        rows = np.array(
            [(0, 0), *(period.spans.get(path, (0, 0)) for period in process.periods)], np.float64
        )
        series[path] = (
            np.diff(np.interp(edges, times, rows[:, 0])),
            np.diff(np.interp(edges, times, rows[:, 1])),
        )
    return series


def _from_events(process: ProfiledProcess, edges: Floats) -> dict[Path, tuple[Floats, Floats]]:
    """Return counts and ns of each path from events: counts at a span's end, time as it passes."""
    series: dict[Path, tuple[Floats, Floats]] = {}
    for index, span in enumerate(process.spans):
        events = process.events[process.events["span"] == index]
        if not span.path or not len(events):
            continue
        starts = events["start_ns"].astype(np.float64)
        lengths = events["end_ns"] - starts
        num_ended = np.histogram(events["end_ns"], edges)[0].astype(np.float64)
        elapsed = np.diff([np.clip(edge - starts, 0.0, lengths).sum() for edge in edges])
        previous = series.get(span.path, (0.0, 0.0))
        series[span.path] = previous[0] + num_ended, previous[1] + elapsed
    return series


def _stage_ns(main: ProfiledProcess, edges: Floats) -> dict[str, Floats]:
    """Return the main thread's ns between the edges by stage, from samples and their weights."""
    times = np.array([main.start_ns, *(period.end_ns for period in main.periods)], np.float64)
    stages, weights = stage_by_key(main), path_weights(main, main.pid)
    # Weighted time of the samples of a stack by stage, and the number of samples.
    stage_ns_by_stack: dict[int, dict[str, float]] = {}
    counts: dict[int, int] = {}
    for sample in main.samples:
        if sample.thread == main.pid:
            by_stage = stage_ns_by_stack.setdefault(sample.stack, {})
            stage = stages[sample.path, sample.stack]
            ns = weights.get(sample.path, 1.0) * sample.elapsed_ns
            by_stage[stage] = by_stage.get(stage, 0.0) + ns
            counts[sample.stack] = counts.get(sample.stack, 0) + sample.count
    by_period: dict[str, Floats] = {}
    for index, period in enumerate(main.periods, 1):
        for stack, count in period.by_stack.items():
            for stage, ns in stage_ns_by_stack.get(stack, {}).items():
                amounts = by_period.setdefault(stage, np.zeros(len(times)))
                amounts[index] += ns * count / counts[stack]
    return {
        stage: np.diff(np.interp(edges, times, np.cumsum(amounts)))
        for stage, amounts in by_period.items()
    }
