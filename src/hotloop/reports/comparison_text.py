"""Comparisons of runs, printed as lines and tables."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.base.rounding import format_interval, format_number
from hotloop.base.streams import printable
from hotloop.base.text_tables import print_columns, print_rows, terminal_width
from hotloop.profiler.render.comparison import render
from hotloop.reports.comparison import Interval, MetricTable, RunComparison, RunSide, SideResult
from hotloop.reports.run_groups import METRIC_LABELS, X_AXIS_LABELS, RunGroup, XAxis


def print_comparison(result: RunComparison) -> None:
    """Print the options that differ, a table for each metric, and the speed."""
    for side in result.sides:
        print(_heading(side))
    if result.options:
        print()
        rows = [[name, *(x or "–" for x in values)] for name, values in result.options.items()]
        headings = ["option", *(side.letter for side in result.sides)]
        plain_rows = [list(map(printable, row)) for row in rows]
        print_rows(headings, plain_rows, num_texts=len(result.sides))
    else:
        print("\nall options are equal")
    for table in result.tables:
        _print_metric(table)
    for letter, (share, band) in result.improvement.items():
        print(f"\nP({letter} > A) over all environments: {_percent(share, band)}")
    if result.speed is not None:
        print(f"\n{render(result.speed, max_width=terminal_width())}")


def print_groups(groups: Sequence[RunGroup], metric: str, x_axis: XAxis) -> None:
    """Print the number of seeds, the length and the performance of each group."""
    has_several_envs = len({group.env_id for group in groups}) > 1
    labels = [f"{x.env_id}: {x.label}" if has_several_envs else x.label for x in groups]
    print_columns(
        [
            ("group", labels),
            ("seeds", [str(len(group.seeds)) for group in groups]),
            (X_AXIS_LABELS[x_axis], [f"{group.end:,.0f}" for group in groups]),
            (f"{metric}, last tenth", [format_interval(*x.final_score()) for x in groups]),
        ]
    )


def _heading(side: RunSide) -> str:
    algorithms = sorted({content["algorithm"] for content in side.runs.values()})
    runs = f"{len(side.runs)} runs" if len(side.runs) > 1 else "a run"
    subject = f"{', '.join(algorithms)} {', '.join(side.env_ids)}"
    seed_text = f"seed{'s' * (len(side.seeds) > 1)} {', '.join(map(str, side.seeds))}"
    return f"{side.letter}  {side.path}: {subject}, {runs}, {seed_text}"


def _print_metric(table: MetricTable) -> None:
    name = METRIC_LABELS.get(table.metric, table.metric)
    print(f"\n{printable(table.env_id)}: {printable(name)}, at {table.end:,.0f} steps")
    headings = ["", "seeds", "last tenth", "to A", "P(> A)"]
    if table.level is not None:
        headings.append(f"steps to {format_number(table.level)}")
    rows = [_cells(row, has_level=table.level is not None) for row in table.rows]
    print_rows([*headings, ""], rows, num_texts=1)


def _cells(row: SideResult, *, has_level: bool) -> list[str]:
    cells = [row.letter, str(len(row.seeds)), format_interval(row.middle, row.band)]
    if row.difference is None:
        cells += ["", ""]
    else:
        cells.append(format_interval(row.difference, row.difference_band, sign="+"))
        cells.append(_percent(row.improvement, row.improvement_band))
    if has_level:
        cells.append("–" if row.steps_to is None else f"{row.steps_to:,.0f}")
    return [*cells, row.verdict]


def _percent(share: float | None, band: Interval) -> str:
    if share is None:  # the row of A itself
        return "–"
    return f"{share:.0%}" if band is None else f"{share:.0%} ({band[0]:.0%} to {band[1]:.0%})"
