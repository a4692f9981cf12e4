"""Comparison of two sessions: faster and slower parts, and whether a difference exceeds noise.

    comparison = compare(read("profiles/before"), read("profiles/after"))
    print(render.comparison.render(comparison))

Time is compared per environment step if steps were recorded, so the length of a run does not
matter. Programs without steps are compared by the duration of spans and by shares of time.

The uncertainty of a figure is estimated from its variation during the run (`rate_estimates`).

Among many spans some differ by chance, so the intervals of a table hold together: they include
Bonferroni's correction for the table's number of rows. Intervals do not cover differences between
runs, such as the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from hotloop.base.statistics import Floats
from hotloop.errors import ProfileError
from hotloop.profiler.diagnose.rate_estimates import RateEstimate, estimate, ratio_interval
from hotloop.profiler.session import Session
from hotloop.profiler.session.stages import STAGES
from hotloop.profiler.session.timeline import Path, Timeline, build_timeline, trim_to_steps

Verdict = Literal["faster", "slower", "larger", "smaller", "within noise"]

# Rows with a smaller share of the time in both sessions are left out.
MIN_SHARE = 0.005


class ComparisonRow(NamedTuple):
    """A stage or span in both sessions.

    Attributes:
        name: name of the stage or span.
        component: its component, "main" or "workers".
        path: path of a span, empty for a stage.
        share_a, share_b: shares of the component's time.
        a, b: nanoseconds per unit of work. For a stage without units, shares of the time.
        mean_a, mean_b: mean duration of one span in nanoseconds, NaN for a stage.
        ratio: b / a.
        low, high: confidence interval of the ratio.
        verdict: "faster" or "slower" for times, "larger" or "smaller" for shares.
        longer: factor by which both runs would have to be longer to distinguish a difference of
            this size from noise. 1 if it is distinguishable.
    """

    name: str
    component: str
    path: Path
    share_a: float
    share_b: float
    a: RateEstimate
    b: RateEstimate
    mean_a: float
    mean_b: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    longer: float


class ComparedProfile(NamedTuple):
    """Summary of one session.

    Attributes:
        name: the session's directory.
        seconds: compared duration, from the first step to the last if there are steps.
        steps: environment steps in this time.
    """

    name: str
    seconds: float
    steps: float


@dataclass(frozen=True)
class ProfileComparison:
    """Comparison of two sessions, A and B.

    Attributes:
        a, b: summaries of the sessions.
        unit: unit of work for times.
        overall: total time per step, None without steps.
        stages: stages of the main thread, empty if a session has no samples.
        spans: spans of the main process and of all workers together.
        only_a, only_b: spans that the other session lacks, by component and path.
        notes: other differences and missing data.
    """

    a: ComparedProfile
    b: ComparedProfile
    unit: Literal["environment step", "call"]
    overall: ComparisonRow | None
    stages: list[ComparisonRow] = field(default_factory=list)
    spans: list[ComparisonRow] = field(default_factory=list)
    only_a: list[tuple[str, Path]] = field(default_factory=list)
    only_b: list[tuple[str, Path]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with rows as objects instead of arrays."""
        return {
            **vars(self),
            "a": self.a._asdict(),
            "b": self.b._asdict(),
            "overall": None if self.overall is None else _to_json(self.overall),
            "stages": list(map(_to_json, self.stages)),
            "spans": list(map(_to_json, self.spans)),
        }


def _to_json(row: ComparisonRow) -> dict[str, Any]:
    return {**row._asdict(), "a": row.a._asdict(), "b": row.b._asdict()}


def compare(a: Session, b: Session) -> ProfileComparison:
    """Compare session `b` with `a`, stage by stage and span by span.

    Raises:
        ProfileError: If the sessions have nothing in common to compare.
    """
    first, second = build_timeline(a), build_timeline(b)
    per_step = first.steps.sum() > 0 and second.steps.sum() > 0
    if per_step:
        first, second = trim_to_steps(first), trim_to_steps(second)
    overall = None
    if per_step:
        overall = _row(
            "overall",
            amounts=(first.durations_s * 1e9, second.durations_s * 1e9),
            units=(first.steps, second.steps),
            shares=(1.0, 1.0),
            num_rows=1,
        )
    stages = _stage_rows(first, second, per_step=per_step)
    spans = _span_rows(first, second, per_step=per_step)
    if not stages and not spans:
        raise ProfileError(_nothing_in_common(first, second))
    return ProfileComparison(
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
) -> ComparisonRow:
    a, b = estimate(amounts[0], units[0]), estimate(amounts[1], units[1])
    ratio, low, high = ratio_interval(a, b, num_rows)
    verdict: Verdict = "within noise"
    longer = math.inf
    if high < 1.0:
        verdict, longer = "smaller" if of_shares else "faster", 1.0
    elif low > 1.0:
        verdict, longer = "larger" if of_shares else "slower", 1.0
    elif 0.0 < low < high < math.inf and ratio != 1.0:
        # The half-width of an interval falls with the root of the length.
        longer = (math.log(high / ratio) / math.log(ratio)) ** 2
    return ComparisonRow(
        name, component, path, *shares, a, b, *means, ratio, low, high, verdict, longer
    )


def _stage_rows(first: Timeline, second: Timeline, *, per_step: bool) -> list[ComparisonRow]:
    if not first.stage_ns or not second.stage_ns:
        return []
    wholes = [sum(float(ns.sum()) for ns in x.stage_ns.values()) for x in (first, second)]
    units = (first.steps, second.steps)
    if not per_step:
        units = first.durations_s * 1e9, second.durations_s * 1e9
    chosen: list[tuple[str, tuple[Floats, Floats], tuple[float, float]]] = []
    for stage in STAGES:
        amounts = tuple(
            course.stage_ns.get(stage, np.zeros(len(course.durations_s)))
            for course in (first, second)
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


def _span_rows(first: Timeline, second: Timeline, *, per_step: bool) -> list[ComparisonRow]:
    chosen: list[tuple[str, Path, tuple[float, float]]] = []
    for name, path in _paths(first):
        if path not in _counts(second, name):
            continue
        shares = _share(first, name, path), _share(second, name, path)
        if max(shares) >= MIN_SHARE:
            chosen.append((name, path, shares))
    rows: list[ComparisonRow] = []
    for name, path, shares in chosen:
        parts = first.components[name], second.components[name]
        counts = parts[0].counts[path], parts[1].counts[path]
        total_ns = parts[0].total_ns[path], parts[1].total_ns[path]
        means = [
            float(ns.sum()) / float(count.sum()) if count.sum() else math.nan
            for ns, count in zip(total_ns, counts, strict=True)
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


def _paths(course: Timeline) -> list[tuple[str, Path]]:
    """Return all paths in tree order: each span before its inner ones, most expensive first."""
    paths: list[tuple[str, Path]] = []
    for name, component in course.components.items():
        total_ns = {path: float(ns.sum()) for path, ns in component.total_ns.items()}

        def key(path: Path, total_ns: Mapping[Path, float] = total_ns) -> list[tuple[float, str]]:
            prefixes = (path[: depth + 1] for depth in range(len(path)))
            return [(-total_ns.get(prefix, 0.0), prefix[-1]) for prefix in prefixes]

        paths += [(name, path) for path in sorted(total_ns, key=key)]
    return paths


def _counts(course: Timeline, name: str) -> Mapping[Path, Floats]:
    return course.components[name].counts if name in course.components else {}


def _share(course: Timeline, name: str, path: Path) -> float:
    component = course.components[name]
    return float(component.total_ns[path].sum()) / (float(component.lifetime_ns.sum()) or 1.0)


def _only_in(course: Timeline, other: Timeline) -> list[tuple[str, Path]]:
    """Return the outermost spans that only the first session has."""
    missing = [
        (name, path)
        for name, path in _paths(course)
        if path not in _counts(other, name) and _share(course, name, path) >= MIN_SHARE
    ]
    return [(name, path) for name, path in missing if (name, path[:-1]) not in missing]


def _side(course: Timeline) -> ComparedProfile:
    return ComparedProfile(
        course.session.directory or course.session.main.name,
        float(course.durations_s.sum()),
        float(course.steps.sum()),
    )


def _notes(first: Timeline, second: Timeline, *, per_step: bool) -> list[str]:
    sides = (("A", first), ("B", second))
    notes: list[str] = []
    if first.session.main.cores != second.session.main.cores:
        cores = first.session.main.cores or "?", second.session.main.cores or "?"
        notes.append(f"A was allowed to run on {cores[0]} cores, B on {cores[1]}")
    environments = [dict(x.session.metadata.get("environment") or {}) for x in (first, second)]
    for name in sorted({*environments[0], *environments[1]}):
        a, b = (environment.get(name, "not set") for environment in environments)
        if a != b:
            notes.append(f"environment variable {name}: {a} in A, {b} in B")
    threads = [x.session.main.facts.get("torch_threads", 0.0) for x in (first, second)]
    if min(threads) > 0 and threads[0] != threads[1]:
        notes.append(f"torch used {threads[0]:g} threads per operation in A, {threads[1]:g} in B")
    sizes = [  # a program with steps and without a vector environment steps one environment
        max([float(x.steps.any()), *(y.facts.get("num_envs", 0.0) for y in x.session.processes)])
        for x in (first, second)
    ]
    if min(sizes) > 0 and sizes[0] != sizes[1]:
        notes.append(f"environments stepped in parallel: {sizes[0]:g} in A, {sizes[1]:g} in B")
    if not per_step:
        without = [name for name, course in sides if not course.steps.any()]
        subject = "neither has" if len(without) == 2 else f"{without[0]} has no"
        notes.append(
            f"{subject} environment steps: times are compared per call, and stages by their share "
            "of the time"
        )
        if not (first.uses_events or second.uses_events):  # these cover only the latest spans
            ratio = float(second.durations_s.sum() / first.durations_s.sum())
            notes[-1] += f". B took {ratio:.2f} times as long as A in total"
    for name, course in sides:
        if course.uses_events:
            notes.append(
                f"{name} has no samples: it is compared by its latest spans, which cover "
                f"{course.durations_s.sum():.1f} s"
            )
        elif not course.stage_ns:
            notes.append(f"{name} has no samples of its main thread: stages are not compared")
    return notes


def _nothing_in_common(first: Timeline, second: Timeline) -> str:
    def has(course: Timeline) -> str:
        names = sorted({path[-1] for _, path in _paths(course)})
        samples = "samples" if course.stage_ns else "no samples"
        return f"{samples} and {'the spans ' + ', '.join(names[:8]) if names else 'no spans'}"

    return (
        "expected two sessions with samples or spans in common, got "
        f"{_side(first).name} with {has(first)}, and {_side(second).name} with {has(second)}: "
        "profile both programs with `hotloop profile`"
    )
