"""Two sessions side by side: what got faster, what slower, and whether that is more than noise.

    comparison = compare(read("profiles/before"), read("profiles/after"))
    print(render(comparison))

Time is compared per environment step, where steps were seen: a run that is twice as long has taken
no more of it. Programs without any are compared by the duration of a span, and by shares of time.

How far a figure can be trusted is told from how it varied while the program ran. A session is cut
into stretches of about a second. The rate R = Σ time / Σ steps has residuals e = time − R·steps;
they are correlated with one another, so P stretches say no more than P / τ independent ones, where
τ = 1 + 2 Σ ρ_k is their autocorrelation time. The standard error of R is taken from the sums of
batches that are 4 τ long, or a third of the whole, with Student's t for as many as there are; that
of a ratio of two rates by the delta method, on its logarithm.

Where many spans are compared, some differ by chance. So the intervals of a table hold all together:
Bonferroni's correction, for as many rows as it has. What differs from run to run, and not within
one, such as the machine, is in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.errors import ProfileError
from hotloop.profiler.session import Process, Session
from hotloop.profiler.stages import STAGES, path_weights, stage_by_key
from hotloop.profiler.throughput import steps_by_path
from hotloop.timing.table import duration

Floats = npt.NDArray[np.float64]
Path = tuple[str, ...]
Verdict = Literal["faster", "slower", "larger", "smaller", "not told from noise"]

# What has less of the time in both sessions is left out.
MIN_SHARE = 0.005
CONFIDENCE = 0.95
MAX_STRETCHES = 240
# Fewer batches than these say nothing of how they vary.
MIN_BATCHES = 3


class Estimate(NamedTuple):
    """A rate: Σ amounts / Σ units.

    Attributes:
        value: NaN where there were no units.
        standard_error: relative to the value; infinite where nothing tells.
        degrees_of_freedom: of the standard error: batches − 1.
        effective: independent stretches that say as much as all of them.
        stretches: how many there were.
    """

    value: float
    standard_error: float
    degrees_of_freedom: float
    effective: float
    stretches: int


class Row(NamedTuple):
    """One thing in both sessions.

    Attributes:
        name: a stage's, or a span's.
        component: whose: "main", "workers".
        path: of a span; empty for a stage.
        share_a, share_b: of its component's time.
        a, b: nanoseconds per unit of work; where there is none, of a stage the share of time.
        mean_a, mean_b: nanoseconds, one span's mean duration; NaN for a stage.
        ratio: b / a.
        low, high: the interval of the ratio.
        verdict: "faster" and "slower" of times, "larger" and "smaller" of shares.
        longer: how many times as long both would have to run for a difference of this size to be
            told from noise; 1 where it is.
    """

    name: str
    component: str
    path: Path
    share_a: float
    share_b: float
    a: Estimate
    b: Estimate
    mean_a: float
    mean_b: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    longer: float


class Side(NamedTuple):
    """What is known of one of the sessions.

    Attributes:
        name: the directory that it was read from.
        seconds: how much of it is compared: from the first step to the last, where there are any.
        steps: environment steps in them.
    """

    name: str
    seconds: float
    steps: float


@dataclass(frozen=True)
class Comparison:
    """Two sessions, A and B.

    Attributes:
        a, b: what they are.
        unit: what time is counted per.
        overall: all of the time, per step; None where there are no steps.
        stages: of the main thread; none where one of both has no samples.
        spans: of the main process and of the workers together.
        only_a, only_b: spans that the other one does not have, by component and path.
        notes: what else differs, or is missing.
    """

    a: Side
    b: Side
    unit: Literal["environment step", "call"]
    overall: Row | None
    stages: list[Row] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)
    only_a: list[tuple[str, Path]] = field(default_factory=list)
    only_b: list[tuple[str, Path]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(a: Session, b: Session) -> Comparison:
    """Compare session `b` with `a`, stage by stage and span by span.

    Raises:
        ProfileError: they have nothing in common that could be compared.
    """
    first, second = _course(a), _course(b)
    per_step = first.steps.sum() > 0 and second.steps.sum() > 0
    if per_step:
        first, second = _between_steps(first), _between_steps(second)
    overall = None
    if per_step:
        overall = _row(
            "all of it",
            amounts=(first.seconds * 1e9, second.seconds * 1e9),
            units=(first.steps, second.steps),
            shares=(1.0, 1.0),
            num_rows=1,
        )
    stages = _stage_rows(first, second, per_step=per_step)
    spans = _span_rows(first, second, per_step=per_step)
    if not stages and not spans:
        raise ProfileError(_nothing_in_common(first, second))
    return Comparison(
        _side(first),
        _side(second),
        "environment step" if per_step else "call",
        overall,
        stages,
        spans,
        _only_in(first, second),
        _only_in(second, first),
        _notes(first, second, per_step=per_step),
    )


# --- the course of a session ----------------------------------------------------------------------


class _Component(NamedTuple):
    """Spans of a process, or of several together, by stretch.

    Attributes:
        counts, total_ns: float64, (P,) each, by path.
        lived_ns: float64, (P,): time of its processes.
    """

    counts: dict[Path, Floats]
    total_ns: dict[Path, Floats]
    lived_ns: Floats

    def part(self, chosen: slice) -> _Component:
        return _Component(
            {path: one[chosen] for path, one in self.counts.items()},
            {path: one[chosen] for path, one in self.total_ns.items()},
            self.lived_ns[chosen],
        )


@dataclass(frozen=True)
class _Course:
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
    components: dict[str, _Component]
    stage_ns: dict[str, Floats]


def _course(session: Session) -> _Course:
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
    return _Course(
        session,
        by_events,
        np.diff(edges) / 1e9,
        steps,
        {name: _Component(counts[name], total_ns[name], lived[name]) for name in counts},
        _stage_ns(main, edges),
    )


def _between_steps(course: _Course) -> _Course:
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


# --- estimates ------------------------------------------------------------------------------------


def autocorrelation_time(series: Floats) -> float:
    """τ = 1 + 2 Σ ρ_k, up to the first lag k ≥ 5 τ, and at least 1.

    Sokal 1997, "Monte Carlo methods in statistical mechanics", section 3.

    Args:
        series: float64, (P,).
    """
    centred = series - series.mean() if len(series) else series
    variance = float(centred @ centred)
    tau = 1.0
    for lag in range(1, len(centred) if variance > 0.0 else 0):
        if lag >= 5.0 * tau:
            break
        tau = max(1.0, tau + 2.0 * float(centred[:-lag] @ centred[lag:]) / variance)
    return tau


def estimate(amounts: Floats, units: Floats) -> Estimate:
    """How much there is per unit, and how well that is known.

    Args:
        amounts, units: float64, (P,), of stretches that follow one another.
    """
    count, total = len(amounts), float(units.sum())
    if total <= 0.0:
        return Estimate(math.nan, math.inf, 0.0, 0.0, count)
    value = float(amounts.sum()) / total
    residuals = amounts - value * units
    tau = autocorrelation_time(residuals)
    if value <= 0.0 or count < MIN_BATCHES:
        return Estimate(value, math.inf, 0.0, count / tau, count)
    # Of series whose τ is known, intervals from batches of 4 τ hold in 93 to 97 % of cases, those
    # from 2 τ in 86 to 97 %: τ comes out too small, and neighbouring batches are alike.
    length = min(math.ceil(4.0 * tau), count // MIN_BATCHES)
    num_batches = count // length
    # The rest, less than a batch, is left out of how they vary.
    sums = residuals[: num_batches * length].reshape(num_batches, length).sum(1)
    variance = float(((sums - sums.mean()) ** 2).sum()) / (num_batches - 1) * count / length
    return Estimate(
        value, math.sqrt(variance) / (value * total), num_batches - 1.0, count / tau, count
    )


def student_t(degrees_of_freedom: float, quantile: float) -> float:
    """A quantile of Student's t above the median: 12.706 for 1 degree of freedom and 0.975.

    With t = √ν tan θ its density becomes cos^(ν−1) θ on (−π/2, π/2); the trapezoid rule.
    """
    theta = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(theta) ** (degrees_of_freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(2.0 * quantile - 1.0, mass / mass[-1], theta))
    return math.sqrt(degrees_of_freedom) * math.tan(angle)


def ratio_interval(a: Estimate, b: Estimate, num_rows: int = 1) -> tuple[float, float, float]:
    """b / a, and the ends of an interval that it lies in.

    Args:
        num_rows: how many intervals are to hold together with 95 %.

    Returns:
        NaN where one is not known; 0 and infinity where nothing tells how they vary.
    """
    if math.isnan(a.value) or math.isnan(b.value) or a.value <= 0.0 >= b.value:
        return math.nan, math.nan, math.nan
    if b.value <= 0.0:  # it is gone, if it was ever there
        return 0.0, 0.0, 0.0 if a.standard_error < 1 / 3 else math.inf
    if a.value <= 0.0:
        return math.inf, math.inf if b.standard_error < 1 / 3 else 0.0, math.inf
    ratio = b.value / a.value
    squares = [one.standard_error**2 for one in (a, b)]
    whole = sum(squares)
    if not math.isfinite(whole):
        return ratio, 0.0, math.inf
    if whole == 0.0:
        return ratio, ratio, ratio
    # Welch and Satterthwaite: the degrees of freedom of a sum of two.
    freedom = whole**2 / sum(
        square**2 / one.degrees_of_freedom for square, one in zip(squares, (a, b), strict=True)
    )
    quantile = 1.0 - (1.0 - CONFIDENCE) / 2.0 / num_rows
    spread = min(student_t(freedom, quantile) * math.sqrt(whole), 700.0)
    return ratio, ratio * math.exp(-spread), ratio * math.exp(spread)


# --- rows -----------------------------------------------------------------------------------------


def _row(
    name: str,
    *,
    component: str = "",
    path: Path = (),
    amounts: tuple[Floats, Floats],
    units: tuple[Floats, Floats],
    shares: tuple[float, float],
    means: tuple[float, float] = (math.nan, math.nan),
    num_rows: int,
    of_shares: bool = False,
) -> Row:
    a, b = estimate(amounts[0], units[0]), estimate(amounts[1], units[1])
    ratio, low, high = ratio_interval(a, b, num_rows)
    verdict: Verdict = "not told from noise"
    longer = math.inf
    if high < 1.0:
        verdict, longer = "smaller" if of_shares else "faster", 1.0
    elif low > 1.0:
        verdict, longer = "larger" if of_shares else "slower", 1.0
    elif 0.0 < low < high < math.inf and ratio != 1.0:
        # The half-width of an interval falls with the root of the length.
        longer = (math.log(high / ratio) / math.log(ratio)) ** 2
    return Row(name, component, path, *shares, a, b, *means, ratio, low, high, verdict, longer)


def _stage_rows(first: _Course, second: _Course, *, per_step: bool) -> list[Row]:
    if not first.stage_ns or not second.stage_ns:
        return []
    wholes = [sum(float(ns.sum()) for ns in one.stage_ns.values()) for one in (first, second)]
    units = (first.steps, second.steps)
    if not per_step:
        units = first.seconds * 1e9, second.seconds * 1e9
    chosen: list[tuple[str, tuple[Floats, Floats], tuple[float, float]]] = []
    for stage in STAGES:
        amounts = tuple(
            one.stage_ns.get(stage, np.zeros(len(one.seconds))) for one in (first, second)
        )
        shares = tuple(
            float(ns.sum()) / (whole or 1.0) for ns, whole in zip(amounts, wholes, strict=True)
        )
        if max(shares) >= MIN_SHARE:
            chosen.append((stage, amounts, shares))  # pyright: ignore[reportArgumentType]
    rows = [
        _row(
            stage,
            component=first.session.main.name,
            amounts=amounts,
            units=units,
            shares=shares,
            num_rows=len(chosen),
            of_shares=not per_step,
        )
        for stage, amounts, shares in chosen
    ]
    return sorted(rows, key=lambda row: -max(row.share_a, row.share_b))


def _span_rows(first: _Course, second: _Course, *, per_step: bool) -> list[Row]:
    chosen: list[tuple[str, Path, tuple[float, float]]] = []
    for name, path in _paths(first):
        if path not in _counts(second, name):
            continue
        shares = _share(first, name, path), _share(second, name, path)
        if max(shares) >= MIN_SHARE:
            chosen.append((name, path, shares))
    rows: list[Row] = []
    for name, path, shares in chosen:
        parts = first.components[name], second.components[name]
        counts = parts[0].counts[path], parts[1].counts[path]
        total_ns = parts[0].total_ns[path], parts[1].total_ns[path]
        means = [
            float(ns.sum()) / float(ended.sum()) if ended.sum() else math.nan
            for ns, ended in zip(total_ns, counts, strict=True)
        ]
        rows.append(
            _row(
                path[-1],
                component=name,
                path=path,
                amounts=total_ns,
                units=(first.steps, second.steps) if per_step else counts,
                shares=shares,
                means=(means[0], means[1]),
                num_rows=len(chosen),
            )
        )
    return rows


def _paths(course: _Course) -> list[tuple[str, Path]]:
    """As in a tree: what is within a span comes after it, the costliest first."""
    found: list[tuple[str, Path]] = []
    for name, component in course.components.items():
        total_ns = {path: float(ns.sum()) for path, ns in component.total_ns.items()}

        def key(path: Path, total_ns: Mapping[Path, float] = total_ns) -> list[tuple[float, str]]:
            above = (path[: depth + 1] for depth in range(len(path)))
            return [(-total_ns.get(one, 0.0), one[-1]) for one in above]

        found += [(name, path) for path in sorted(total_ns, key=key)]
    return found


def _counts(course: _Course, name: str) -> Mapping[Path, Floats]:
    return course.components[name].counts if name in course.components else {}


def _share(course: _Course, name: str, path: Path) -> float:
    component = course.components[name]
    return float(component.total_ns[path].sum()) / (float(component.lived_ns.sum()) or 1.0)


def _only_in(course: _Course, other: _Course) -> list[tuple[str, Path]]:
    """The outermost of the spans that only one of both has."""
    missing = [
        (name, path)
        for name, path in _paths(course)
        if path not in _counts(other, name) and _share(course, name, path) >= MIN_SHARE
    ]
    return [(name, path) for name, path in missing if (name, path[:-1]) not in missing]


def _side(course: _Course) -> Side:
    return Side(
        course.session.directory or course.session.main.name,
        float(course.seconds.sum()),
        float(course.steps.sum()),
    )


def _notes(first: _Course, second: _Course, *, per_step: bool) -> list[str]:
    sides = (("A", first), ("B", second))
    notes: list[str] = []
    if first.session.main.cores != second.session.main.cores:
        cores = first.session.main.cores or "?", second.session.main.cores or "?"
        notes.append(f"A was allowed to run on {cores[0]} cores, B on {cores[1]}")
    sizes = [
        max((process.facts.get("num_envs", 0.0) for process in one.session.processes), default=0.0)
        for one in (first, second)
    ]
    if sizes[0] != sizes[1]:
        notes.append(f"A stepped {sizes[0]:g} environments at once, B {sizes[1]:g}")
    if not per_step:
        without = [name for name, one in sides if not one.steps.any()]
        who = "neither has" if len(without) == 2 else f"{without[0]} has no"
        notes.append(
            f"{who} environment steps: times are compared per call, and stages by their share of "
            "the time"
        )
        if not (first.by_events or second.by_events):  # these go back to the latest spans alone
            ratio = float(second.seconds.sum() / first.seconds.sum())
            notes[-1] += f"; as a whole B took {ratio:.2f} times as long as A"
    for name, one in sides:
        if one.by_events:
            notes.append(
                f"{name} has no samples: it is compared by its latest spans, which go back "
                f"{one.seconds.sum():.1f} s"
            )
        elif not one.stage_ns:
            notes.append(f"{name} has no samples of its main thread: no stages are compared")
    return notes


def _nothing_in_common(first: _Course, second: _Course) -> str:
    def has(course: _Course) -> str:
        names = sorted({path[-1] for _, path in _paths(course)})
        samples = "samples" if course.stage_ns else "no samples"
        return f"{samples} and {'the spans ' + ', '.join(names[:8]) if names else 'no spans'}"

    return (
        "expected two sessions with samples or spans in common, got "
        f"{_side(first).name} with {has(first)}, and {_side(second).name} with {has(second)}: "
        "profile both programs with `hotloop profile`"
    )


# --- text -----------------------------------------------------------------------------------------


def render(comparison: Comparison) -> str:
    """The comparison as plain text."""
    return "\n".join([*_heading(comparison), *_tables(comparison), *comparison.notes])


def _heading(comparison: Comparison) -> list[str]:
    lines: list[str] = []
    overall = comparison.overall
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        line = f"{letter}  {side.name}: {side.seconds:,.1f} s"
        if overall is not None:
            one = overall.a if letter == "A" else overall.b
            line += (
                f", {side.steps:,.0f} environment steps; {one.stretches} stretches of it say as "
                f"much as {one.effective:.0f} independent ones"
            )
        lines.append(line)
    if overall is not None:
        speeds = 1e9 / overall.a.value, 1e9 / overall.b.value
        interval = _interval(1 / overall.ratio, _inverse(overall.high), _inverse(overall.low))
        lines += [
            "",
            f"environment steps a second: {speeds[0]:,.0f} → {speeds[1]:,.0f}, {interval}: "
            f"{_verdict(overall)}",
        ]
    return lines


def _tables(comparison: Comparison) -> list[str]:
    lines: list[str] = []
    per = f"per {comparison.unit}"
    if comparison.stages:
        heads = (per if comparison.overall else "share of the time", "A", "B", "B / A", "")
        rows = [
            (
                STAGES[row.name],
                _amount(row.a.value, of_shares=comparison.overall is None),
                _amount(row.b.value, of_shares=comparison.overall is None),
                _interval(row.ratio, row.low, row.high),
                _verdict(row),
            )
            for row in comparison.stages
        ]
        lines += ["", *_plain([heads, *rows])]
    components = list(dict.fromkeys(row.component for row in comparison.spans))
    for component in components:
        own = [row for row in comparison.spans if row.component == component]
        heads = (f"{component}, {per}", "A", "B", "one call, A", "B", "B / A", "")
        rows = [
            (
                "  " * len(row.path) + row.name,
                duration(row.a.value),
                duration(row.b.value),
                duration(row.mean_a),
                duration(row.mean_b),
                _interval(row.ratio, row.low, row.high),
                _verdict(row),
            )
            for row in own
        ]
        lines += ["", *_plain([heads, *rows])]
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            names = ", ".join(f"{' > '.join(path)} ({name})" for name, path in only)
            lines += ["", f"only in {letter}: {names}"]
    return [*lines, ""] if comparison.notes else lines


def _plain(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.rjust(width) if 0 < i < last else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _amount(value: float, *, of_shares: bool) -> str:
    return f"{value:.1%}" if of_shares and not math.isnan(value) else duration(value)


def _inverse(value: float) -> float:
    return 1.0 / value if value else math.inf


def _interval(ratio: float, low: float, high: float) -> str:
    if math.isnan(ratio):
        return "–"
    if ratio in (0.0, math.inf):
        return "gone" if ratio == 0.0 else "new"
    if low == 0.0 or high == math.inf:
        return f"{ratio:.2f}× (?)"
    return f"{ratio:.2f}× ({low:.2f}–{high:.2f})"


def _verdict(row: Row) -> str:
    if row.verdict != "not told from noise":
        return row.verdict
    if math.isnan(row.ratio) or row.low == 0.0 or row.high == math.inf:
        return "too short to say"
    needs = "more than 100" if row.longer > 100 else f"{max(2, math.ceil(row.longer))}"
    return f"no difference that can be told from noise (needs {needs}× longer)"
