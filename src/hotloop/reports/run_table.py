"""Tables of runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.rounding import format_number, format_rate
from hotloop.base.streams import printable
from hotloop.base.text_tables import plain_table
from hotloop.errors import HotloopError, RunDirectoryError, UntrustedError
from hotloop.runs.summary import RunSummary, summarize

if TYPE_CHECKING:
    from rich.table import Table

_COLORS = {
    "finished": "green",
    "running": "cyan",
    "stopped": "yellow",
    "killed": "red",
    "damaged": "red",
}

# Column → alignment. The run is last, since its path is the longest and may wrap.
_COLUMNS = {
    "started": "left",
    "environment": "left",
    "algorithm": "left",
    "seed": "right",
    "status": "left",
    "steps": "right",
    "return": "right",
    "best eval": "right",
    "steps/s": "right",
    "run": "left",
}
# Columns that a narrow terminal omits, in this order. Most run names have the first three.
_DISPENSABLE = ("algorithm", "seed", "started", "steps/s", "best eval", "environment", "return")
_GAP = 2
_MIN_RUN_WIDTH = 24


def read_summaries(
    paths: Sequence[Path],
) -> tuple[list[RunSummary], list[tuple[Path, HotloopError]]]:
    """Return summaries, oldest first, and the unreadable and changed runs with their errors."""
    summaries: list[RunSummary] = []
    damaged: list[tuple[Path, HotloopError]] = []
    for path in paths:
        try:
            summaries.append(summarize(path))
        except (RunDirectoryError, UntrustedError) as error:
            damaged.append((path, error))
    summaries.sort(key=lambda s: (s.start_time.timestamp() if s.start_time else 0.0, s.path))
    return summaries, damaged


def runs_json(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the summaries, oldest first, and then the unreadable runs with their errors."""
    summaries, damaged = read_summaries(paths)
    broken = (
        {"path": str(path), "status": "damaged", "error": str(error)} for path, error in damaged
    )
    return [*(summary.to_json() for summary in summaries), *broken]


def run_table(
    summaries: Sequence[RunSummary], damaged: Sequence[Path], directory: Path, width: int
) -> Table:
    """Return a table of runs.

    Args:
        summaries: the readable runs.
        damaged: paths of the unreadable runs.
        directory: the directory that the printed paths are relative to.
        width: width of the terminal. The table omits columns that do not fit.
    """
    rows = [_row(summary, directory) for summary in summaries]
    rows += [{"status": "damaged", "run": _name(path, directory)} for path in damaged]
    return _table(rows, width)


def _row(summary: RunSummary, directory: Path) -> dict[str, str]:
    """Return the cells of a run by column, without unknown ones."""
    cells = {
        "started": f"{summary.start_time:%Y-%m-%d %H:%M}" if summary.start_time else None,
        "environment": summary.env_id,
        "algorithm": summary.algorithm,
        "seed": str(summary.seed),
        "status": summary.status,
        "steps": f"{summary.timesteps:,} / {summary.total_timesteps:,}",
        "return": _number(summary.mean_return, summary.std_return),
        "best eval": _number(summary.best_evaluation, summary.best_evaluation_std),
        "steps/s": None if summary.steps_per_s is None else format_rate(summary.steps_per_s),
        "run": _name(summary.path, directory),
    }
    return {column: cell for column, cell in cells.items() if cell is not None}


def _name(path: Path, directory: Path) -> str:
    """Return the path of a run relative to `directory`, or its full path if the two are equal."""
    name = str(path) if path == directory else os.path.relpath(path, directory)
    return re.sub(r"[\n\t]", "\N{REPLACEMENT CHARACTER}", printable(name))


def _number(value: float | None, spread: float | None) -> str | None:
    return None if value is None else format_number(value, spread)


def _table(rows: list[dict[str, str]], console_width: int) -> Table:
    """Return a table that fits the console, without columns that have no value for any run."""
    from rich.cells import cell_len
    from rich.text import Text

    def width(column: str) -> int:
        return max(cell_len(column), *(cell_len(row.get(column, "–")) for row in rows))

    columns = [column for column in _COLUMNS if any(column in row for row in rows)]
    omitted = []
    for column in _DISPENSABLE:
        width_without_run = sum(width(name) + _GAP for name in columns[:-1])
        if width_without_run + min(width("run"), _MIN_RUN_WIDTH) <= console_width:
            break
        if column in columns:
            columns.remove(column)
            omitted.append(column)
    table = plain_table()
    if omitted:
        table.caption = f"too narrow for: {', '.join(omitted)}; --json prints all columns"
        table.caption_justify = "left"
    for column in columns:
        is_run = column == "run"
        table.add_column(
            column,
            justify="right" if _COLUMNS[column] == "right" else "left",
            no_wrap=not is_run,
            overflow="fold" if is_run else "ellipsis",
        )
    for row in rows:
        cells = [Text(row.get(column, "–")) for column in columns]
        cells[columns.index("status")].stylize(_COLORS.get(row["status"], ""))
        table.add_row(*cells)
    return table
