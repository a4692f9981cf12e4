"""Text of a comparison of two sessions."""

from __future__ import annotations

import math

from hotloop.base.rounding import format_rate
from hotloop.base.text_tables import aligned
from hotloop.profiler.diagnose.comparison import ComparisonRow, ProfileComparison
from hotloop.profiler.session.stages import STAGES
from hotloop.timing.table import duration


def render(comparison: ProfileComparison, *, max_width: int | None = None) -> str:
    """Return the comparison as plain text, with tables for a terminal of this width."""
    return "\n".join([*_heading(comparison), *_tables(comparison, max_width), *comparison.notes])


def _heading(comparison: ProfileComparison) -> list[str]:
    lines: list[str] = []
    overall = comparison.overall
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        line = f"{letter}  {side.name}: {side.seconds:,.1f} s"
        if overall is not None:
            rate = overall.a if letter == "A" else overall.b
            line += (
                f", {side.steps:,.0f} environment steps, {rate.stretches} stretches equivalent to "
                f"{rate.effective:.0f} independent ones"
            )
        lines.append(line)
    if overall is not None:
        speeds = 1e9 / overall.a.value, 1e9 / overall.b.value
        ratio = interval(1 / overall.ratio, _inverse(overall.high), _inverse(overall.low))
        lines += [
            "",
            f"environment steps per second: {format_rate(speeds[0])} → {format_rate(speeds[1])}, "
            f"{ratio}: {verdict(overall)}",
        ]
    return lines


def _tables(comparison: ProfileComparison, max_width: int | None) -> list[str]:
    lines: list[str] = []
    per = f"per {comparison.unit}"
    if comparison.stages:
        heads = (per if comparison.overall else "share of time", "A", "B", "B / A", "")
        rows = [
            (
                STAGES[row.name],
                amount(row.a.value, of_shares=comparison.overall is None),
                amount(row.b.value, of_shares=comparison.overall is None),
                interval(row.ratio, row.low, row.high),
                verdict(row),
            )
            for row in comparison.stages
        ]
        lines += ["", aligned([heads, *rows], num_texts=1, max_width=max_width)]
    components = list(dict.fromkeys(row.component for row in comparison.spans))
    for component in components:
        spans = [row for row in comparison.spans if row.component == component]
        heads = (f"{component}, {per}", "A", "B", "mean call, A", "mean call, B", "B / A", "")
        rows = [
            (
                "  " * len(row.path) + row.name,
                duration(row.a.value),
                duration(row.b.value),
                duration(row.mean_a),
                duration(row.mean_b),
                interval(row.ratio, row.low, row.high),
                verdict(row),
            )
            for row in spans
        ]
        lines += ["", aligned([heads, *rows], num_texts=1, max_width=max_width)]
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            names = ", ".join(f"{' > '.join(path)} ({name})" for name, path in only)
            lines += ["", f"only in {letter}: {names}"]
    return [*lines, ""] if comparison.notes else lines


def amount(value: float, *, of_shares: bool) -> str:
    """Return a duration or a share as text."""
    return f"{value:.1%}" if of_shares and not math.isnan(value) else duration(value)


def _inverse(value: float) -> float:
    return 1.0 / value if value else math.inf


def interval(ratio: float, low: float, high: float) -> str:
    """Return a ratio with its interval as text."""
    if math.isnan(ratio):
        return "–"
    if ratio in (0.0, math.inf):
        return "gone" if ratio == 0.0 else "new"
    if low == 0.0 or high == math.inf:
        return f"{ratio:.2f}× (?)"
    return f"{ratio:.2f}× ({low:.2f}–{high:.2f})"


def verdict(row: ComparisonRow) -> str:
    """Return a row's verdict, with the length of run that it needs."""
    if row.verdict != "within noise":
        return row.verdict
    if min(row.a.stretches, row.b.stretches) < 2:
        return "noise unknown"  # such as of a recording without the times of its samples
    if math.isnan(row.ratio) or row.low == 0.0 or row.high == math.inf:
        return "too short to compare"
    factor = "more than 100" if row.longer > 100 else f"{max(2, math.ceil(row.longer))}"
    return f"within noise (needs {factor}× longer runs)"
