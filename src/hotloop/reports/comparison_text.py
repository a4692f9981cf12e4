"""A comparison of runs as lines and tables for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotloop.base.rounding import format_interval, format_number
from hotloop.base.streams import printable
from hotloop.base.text_tables import plain_table
from hotloop.profiler.render.comparison import render
from hotloop.reports.comparison import Interval, MetricTable, RunComparison, RunSide, SideResult
from hotloop.reports.run_groups import METRIC_LABELS, X_AXIS_LABELS, RunGroup, XAxis

if TYPE_CHECKING:
    from rich.table import Table


def comparison_blocks(result: RunComparison) -> Iterator[str | Table]:
    """Yield the lines and tables of a comparison."""
    yield from map(_heading, result.sides)
    if result.options:
        yield ""
        yield _option_table(result)
    else:
        yield "\nall options are equal"
    for table in result.tables:
        name = METRIC_LABELS.get(table.metric, table.metric)
        yield f"\n{printable(table.env_id)}: {printable(name)}, at {table.end:,.0f} steps"
        yield _metric_table(table)
    for letter, (share, band) in result.improvement.items():
        yield f"\nP({letter} > A) over all environments: {_percent(share, band)}"
    if result.speed is not None:
        yield f"\n{render(result.speed)}"


def group_table(groups: Sequence[RunGroup], metric: str, x_axis: XAxis) -> Table:
    """Return the number of seeds, the length and the performance of each group."""
    from rich.text import Text

    table = plain_table()
    table.add_column("group", overflow="fold")
    for heading in ("seeds", X_AXIS_LABELS[x_axis], f"{metric}, last tenth"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_several_envs = len({group.env_id for group in groups}) > 1
    for group in groups:
        label = f"{group.env_id}: {group.label}" if has_several_envs else group.label
        score = format_interval(*group.final_score())
        table.add_row(Text(label), str(len(group.seeds)), f"{group.end:,.0f}", score)
    return table


def _heading(side: RunSide) -> str:
    algorithms = sorted({content["algorithm"] for content in side.runs.values()})
    runs = f"{len(side.runs)} runs" if len(side.runs) > 1 else "a run"
    subject = f"{', '.join(algorithms)} {', '.join(side.env_ids)}"
    seed_text = f"seed{'s' * (len(side.seeds) > 1)} {', '.join(map(str, side.seeds))}"
    return f"{side.letter}  {side.path}: {subject}, {runs}, {seed_text}"


def _option_table(result: RunComparison) -> Table:
    from rich.text import Text

    table = plain_table()
    for heading in ("option", *(side.letter for side in result.sides)):
        table.add_column(heading, overflow="fold")
    for name, values in result.options.items():
        table.add_row(Text(printable(name)), *(Text(printable(x) or "–") for x in values))
    return table


def _metric_table(section: MetricTable) -> Table:
    table = plain_table()
    table.add_column("")
    headings = ["seeds", "last tenth", "to A", "P(> A)"]
    if section.level is not None:
        headings.append(f"steps to {format_number(section.level)}")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in section.rows:
        table.add_row(*_cells(row, has_level=section.level is not None))
    return table


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
    if share is None:  # A itself
        return "–"
    return f"{share:.0%}" if band is None else f"{share:.0%} ({band[0]:.0%} to {band[1]:.0%})"
