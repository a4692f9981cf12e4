"""Two sessions side by side: what got faster, what slower, and whether that is more than noise.

    comparison = compare(read("profiles/before"), read("profiles/after"))
    print(render.comparison.render(comparison))

Time is compared per environment step, where steps were seen: a run that is twice as long has taken
no more of it. Programs without any are compared by the duration of a span, and by shares of time.

How far a figure can be trusted is told from how it varied while the program ran (`estimates`).

Where many spans are compared, some differ by chance. So the intervals of a table hold all together:
Bonferroni's correction, for as many rows as it has. What differs from run to run, and not within
one, such as the machine, is in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from hotloop.errors import ProfileError
from hotloop.profiler.diagnose.estimates import Estimate, estimate, ratio_interval
from hotloop.profiler.session import Session
from hotloop.profiler.session.course import Course, Path, between_steps, course_of
from hotloop.profiler.session.stages import STAGES
from hotloop.statistics import Floats

Verdict = Literal["faster", "slower", "larger", "smaller", "not told from noise"]

# What has less of the time in both sessions is left out.
MIN_SHARE = 0.005


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
    first, second = course_of(a), course_of(b)
    per_step = first.steps.sum() > 0 and second.steps.sum() > 0
    if per_step:
        first, second = between_steps(first), between_steps(second)
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


def _stage_rows(first: Course, second: Course, *, per_step: bool) -> list[Row]:
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


def _span_rows(first: Course, second: Course, *, per_step: bool) -> list[Row]:
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


def _paths(course: Course) -> list[tuple[str, Path]]:
    """As in a tree: what is within a span comes after it, the costliest first."""
    found: list[tuple[str, Path]] = []
    for name, component in course.components.items():
        total_ns = {path: float(ns.sum()) for path, ns in component.total_ns.items()}

        def key(path: Path, total_ns: Mapping[Path, float] = total_ns) -> list[tuple[float, str]]:
            above = (path[: depth + 1] for depth in range(len(path)))
            return [(-total_ns.get(one, 0.0), one[-1]) for one in above]

        found += [(name, path) for path in sorted(total_ns, key=key)]
    return found


def _counts(course: Course, name: str) -> Mapping[Path, Floats]:
    return course.components[name].counts if name in course.components else {}


def _share(course: Course, name: str, path: Path) -> float:
    component = course.components[name]
    return float(component.total_ns[path].sum()) / (float(component.lived_ns.sum()) or 1.0)


def _only_in(course: Course, other: Course) -> list[tuple[str, Path]]:
    """The outermost of the spans that only one of both has."""
    missing = [
        (name, path)
        for name, path in _paths(course)
        if path not in _counts(other, name) and _share(course, name, path) >= MIN_SHARE
    ]
    return [(name, path) for name, path in missing if (name, path[:-1]) not in missing]


def _side(course: Course) -> Side:
    return Side(
        course.session.directory or course.session.main.name,
        float(course.seconds.sum()),
        float(course.steps.sum()),
    )


def _notes(first: Course, second: Course, *, per_step: bool) -> list[str]:
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


def _nothing_in_common(first: Course, second: Course) -> str:
    def has(course: Course) -> str:
        names = sorted({path[-1] for _, path in _paths(course)})
        samples = "samples" if course.stage_ns else "no samples"
        return f"{samples} and {'the spans ' + ', '.join(names[:8]) if names else 'no spans'}"

    return (
        "expected two sessions with samples or spans in common, got "
        f"{_side(first).name} with {has(first)}, and {_side(second).name} with {has(second)}: "
        "profile both programs with `hotloop profile`"
    )
