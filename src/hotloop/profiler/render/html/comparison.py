"""HTML page of a comparison of two sessions: one self-contained file.

write(compare(a, b), a, b, "comparison.html")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hotloop.base.html_page import Page, Section, escaped, table
from hotloop.base.rounding import format_rate
from hotloop.errors import ProfileError
from hotloop.profiler.diagnose.comparison import ComparisonRow, ProfileComparison
from hotloop.profiler.diagnose.evidence import short_path
from hotloop.profiler.render import comparison as text
from hotloop.profiler.render import flame, phrases
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.html import chart_data, flame_controls, page_script
from hotloop.profiler.session import Session
from hotloop.profiler.session.memory import memory_series
from hotloop.profiler.session.stages import STAGES
from hotloop.profiler.session.sums import sums

# Smallest change of a function's own share that is shown, and maximum number of rows.
_MIN_CHANGE, _MAX_FUNCTIONS = 0.005, 60
_MARKS = {"faster": "good", "smaller": "good", "slower": "bad", "larger": "bad"}


def write(
    comparison: ProfileComparison, a: Session, b: Session, path: str | os.PathLike[str]
) -> None:
    """Write the page of a comparison to a file.

    Raises:
        OutputError: The file can't be written.
    """
    comparison_page(comparison, a, b).write(path)


def comparison_page(comparison: ProfileComparison, a: Session, b: Session) -> Page:
    """Return the page of a comparison of two sessions."""
    graph = _flame_data(comparison, a, b)
    heading = " → ".join(phrases.one_line(side.name) for side in (comparison.a, comparison.b))
    notes = "".join(f"<li>{escaped(note)}</li>" for note in comparison.notes)
    return Page(
        kind="comparison",
        title=heading,
        overview=heading,
        figures=_figures(comparison),
        sections=[
            Section("stages", "Stages", _stages(comparison)),
            Section("flame", "Flame graph of the changes", _flame() if graph else ""),
            Section("functions", "Functions whose share changed", _functions(a, b)),
            Section("spans", "Spans", _spans(comparison)),
            Section("memory", "Memory", _memory(a, b)),
            Section("notes", "Other differences", f'<ul class="notes">{notes}</ul>' * bool(notes)),
        ],
        footer="Intervals are 95 %, and cover the noise within each run.",
        script=page_script("kit", "flame", "sorting", "start"),
        chart_data={"flame": graph},
    )


def _figures(comparison: ProfileComparison) -> list[tuple[str, str]]:
    figures = [
        (f"{letter}: wall time", f"{side.seconds:,.1f} s")
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    if comparison.overall is not None:
        row = comparison.overall
        for letter, rate in (("A", row.a), ("B", row.b)):
            figures.append((f"{letter}: steps per second", format_rate(1e9 / rate.value)))
        figures.append(("B is", f"{1 / row.ratio:.2f}× as fast"))
        figures.append(("verdict", text.verdict(row)))
    return figures


def _rows(rows: Sequence[ComparisonRow], unit: str, *, of_shares: bool) -> str:
    """Return a table of rows, with the verdict as a mark."""
    cells = [
        (
            escaped(" › ".join(row.path) or STAGES[row.name]),
            *(text.amount(rate.value, of_shares=of_shares) for rate in (row.a, row.b)),
            text.interval(row.ratio, row.low, row.high),
            f'<span class="{_MARKS.get(row.verdict, "dim")}">{escaped(text.verdict(row))}</span>',
        )
        for row in rows
    ]
    return table(("part", "A", "B", "B / A", "verdict"), cells, unit, kind="sortable compared")


def _stages(comparison: ProfileComparison) -> str:
    if not comparison.stages:
        return ""
    of_shares = comparison.overall is None
    unit = "Shares of the main thread's time" if of_shares else f"Time per {comparison.unit}"
    return _rows(comparison.stages, unit, of_shares=of_shares)


def _spans(comparison: ProfileComparison) -> str:
    parts = [
        _rows(
            [row for row in comparison.spans if row.component == component],
            f"{component}, time per {comparison.unit}",
            of_shares=False,
        )
        for component in dict.fromkeys(row.component for row in comparison.spans)
    ]
    for letter, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        names = ", ".join(f"{' › '.join(path)} ({name})" for name, path in only)
        parts += [f"<p>Only in {letter}: {escaped(names)}</p>"] if names else []
    return "\n".join(parts)


def _functions(a: Session, b: Session) -> str:
    """Return a table of functions by the change of their own share, over all processes."""
    shares = [_own_shares(session) for session in (a, b)]
    changes = {
        key: (shares[0].get(key, 0.0), shares[1].get(key, 0.0))
        for key in {**shares[0], **shares[1]}
    }
    ordered = sorted(changes.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    rows = [
        (
            f"<code>{escaped(function)}</code>",
            f"{before:.1%}",
            f"{after:.1%}",
            f'<span class="{"bad" if after > before else "good"}">{after - before:+.1%}</span>',
            escaped(component),
            f"<code>{escaped(file)}</code>",
        )
        for (component, file, function), (before, after) in ordered[:_MAX_FUNCTIONS]
        if abs(after - before) >= _MIN_CHANGE
    ]
    if not rows:
        return ""
    headings = ("function", "own, A", "own, B", "change", "threads", "file")
    content = table(headings, rows, "Shares of own time", kind="lines sortable")
    return f'<div class="tall">{content}</div>'


def _own_shares(session: Session) -> dict[tuple[str, str, str], float]:
    """Return the own shares by threads, file and function."""
    shares: list[tuple[tuple[str, str, str], float]] = []
    for costs in Findings(session).costs:
        name = "all workers" if session.workers and costs.name.endswith("workers") else costs.name
        shares += [((name, short_path(x.file), x.name), x.own_share) for x in costs.functions]
    return sums(shares)


def _flame() -> str:
    return f"""<p>A frame is as wide as the longer of its times in A and B, per unit of work. Red
frames take longer in B, green ones less. Click a frame to see only what it contains.</p>
{flame_controls(has_kinds=False)}
<div class="picture tall"><canvas id="flame-graph" role="img" tabindex="0"
aria-label="Flame graph of the changes. The table of functions has the numbers"></canvas></div>
<p class="flame-line"><output id="flame-details" aria-live="polite"></output>
<a id="flame-source" href="#functions" hidden>source</a></p>
"""


def _flame_data(comparison: ProfileComparison, a: Session, b: Session) -> dict[str, Any] | None:
    """Return the data of the flame graph, None if a session has no samples."""
    try:
        merge = len(a.workers) > 1 or len(b.workers) > 1
        before, after = (flame.folded(session, merge_workers=merge) for session in (a, b))
    except ProfileError:
        return None
    if comparison.overall is not None:
        sizes, unit = (comparison.a.steps, comparison.b.steps), f"per {comparison.unit}"
    else:
        sizes = tuple(sum(stacks.values()) / 1e9 for stacks in (before, after))
        unit = "of each second"
    return chart_data.flame_comparison(before, after, sizes) | {"unit": unit}


def _memory(a: Session, b: Session) -> str:
    peaks = [
        {x.name: sizes.max() for x in session.processes if len(sizes := memory_series(x)[1])}
        for session in (a, b)
    ]
    rows = [
        (
            escaped(name),
            *(f"{peak[name] / 1e6:,.0f} MB" if name in peak else "" for peak in peaks),
        )
        for name in dict.fromkeys([*peaks[0], *peaks[1]])
    ]
    return table(("process", "A", "B"), rows, "Peak of resident memory", kind="sortable") * bool(
        rows
    )
