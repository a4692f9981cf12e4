"""`hotloop runs`: the runs beneath a directory, and where each stands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.cli import tell
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import RunDirectoryError

if TYPE_CHECKING:
    from rich.table import Table

    from hotloop.runs.summary import RunSummary

_COLOURS = {
    "finished": "green",
    "running": "cyan",
    "stopped": "yellow",
    "killed": "red",
    "damaged": "red",
}

# Column → how it is aligned. The run stands last: its path is the longest and may be folded.
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
# What a narrow terminal does without, in this order; the first three stand in most runs' names.
_DISPENSABLE = ("algorithm", "seed", "started", "steps/s", "best eval", "environment", "return")
_GAP = 2
_LEAST_RUN_WIDTH = 24


def run(args: list[str]) -> int:
    """List; see `hotloop runs --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop runs",
        description="List the runs beneath a directory, oldest first: steps of those asked for, "
        "mean return of the last 100 training episodes, the best evaluation. A run that can't be "
        "read is listed as damaged.",
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        default="runs",
        help="where to look, four levels deep (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)

    from hotloop.runs.summary import find_runs

    directory = Path(options.directory)
    found = find_runs(directory)
    if options.json:
        summaries, damaged = _read(found)
        broken = [{"path": str(p), "status": "damaged", "error": str(e)} for p, e in damaged]
        json.dump([*(summary.to_json() for summary in summaries), *broken], sys.stdout)
        print()
    elif found:
        show(found, directory)
    else:
        print(f"no runs beneath {directory}")
    return 0


def show(paths: Sequence[Path], directory: Path) -> None:
    """Print a table of runs.

    Args:
        paths: their directories.
        directory: that they are named from.
    """
    summaries, damaged = _read(paths)
    rows = [_row(summary, directory) for summary in summaries]
    rows += [{"status": "damaged", "run": _name(path, directory)} for path, _ in damaged]
    console = wide_console()
    print_table(_table(rows, console.width), console)
    for _, error in damaged:
        tell(str(error))


def _read(
    paths: Sequence[Path],
) -> tuple[list[RunSummary], list[tuple[Path, RunDirectoryError]]]:
    """Return where runs stand, oldest first, and those that can't be read."""
    from hotloop.runs.summary import summarise

    summaries: list[RunSummary] = []
    damaged: list[tuple[Path, RunDirectoryError]] = []
    for path in paths:
        try:
            summaries.append(summarise(path))
        except RunDirectoryError as error:
            damaged.append((path, error))
    summaries.sort(key=lambda s: (s.started.timestamp() if s.started else 0.0, s.path))
    return summaries, damaged


def _row(summary: RunSummary, directory: Path) -> dict[str, str]:
    """The cells of a run by column; what is not known is left out."""
    cells = {
        "started": f"{summary.started:%Y-%m-%d %H:%M}" if summary.started else None,
        "environment": summary.env_id,
        "algorithm": summary.algorithm,
        "seed": str(summary.seed),
        "status": summary.status,
        "steps": f"{summary.timesteps:,} / {summary.total_timesteps:,}",
        "return": _number(summary.mean_return),
        "best eval": _number(summary.best_evaluation),
        "steps/s": None if summary.steps_per_s is None else f"{summary.steps_per_s:,.0f}",
        "run": _name(summary.path, directory),
    }
    return {column: cell for column, cell in cells.items() if cell is not None}


def _name(path: Path, directory: Path) -> str:
    """What leads from `directory` to a run, or the run's own path where that is `directory`."""
    return str(path) if path == directory else os.path.relpath(path, directory)


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}"


def _table(rows: list[dict[str, str]], console_width: int) -> Table:
    """As many columns as there is room for; a column that no run has a value for is left out."""
    from rich.cells import cell_len
    from rich.text import Text

    def width(column: str) -> int:
        return max(cell_len(column), *(cell_len(row.get(column, "–")) for row in rows))

    columns = [column for column in _COLUMNS if any(column in row for row in rows)]
    left_out = []
    for column in _DISPENSABLE:
        others = sum(width(c) + _GAP for c in columns[:-1])
        if others + min(width("run"), _LEAST_RUN_WIDTH) <= console_width:
            break
        if column in columns:
            columns.remove(column)
            left_out.append(column)
    table = plain_table()
    if left_out:
        table.caption = f"too narrow for: {', '.join(left_out)}; --json has everything"
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
        cells[columns.index("status")].stylize(_COLOURS.get(row["status"], ""))
        table.add_row(*cells)
    return table
