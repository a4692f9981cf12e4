"""The progress, the table and the summary of a grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.durations import duration
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_columns
from hotloop.cli.bandit.progress import ProgressLine, format_count
from hotloop.cli.bandit.tables import plus_minus

if TYPE_CHECKING:
    from hotloop.bandits.grids import GridProgress, GridTable

MAX_ROWS = 20


class GridLine(ProgressLine):
    """The progress line of a grid, and its last progress."""

    def __init__(self) -> None:
        super().__init__(after_s=0.0)
        self.progress: GridProgress | None = None

    def show_grid(self, progress: GridProgress) -> None:
        """Draw the progress, before the first time with a line about results in the file."""
        if self.progress is None and 0 < progress.stored_run_steps < progress.total_run_steps:
            share = progress.stored_run_steps / progress.total_run_steps
            notify(
                f"{progress.finished_points:,} of {progress.total_points:,} points, "
                f"{share:.0%} of all run·steps, are in the file already"
            )
        self.progress = progress
        self.show(lambda: progress_text(progress))

    def stored_text(self, path: Path) -> str:
        """Return what the file contains after a stop."""
        if self.progress is None:
            return "before the first result"
        return (
            f"with {self.progress.finished_points:,} of {self.progress.total_points:,} points "
            f"complete in {path}, and finished parts of the others: run the same command to resume"
        )


def progress_text(progress: GridProgress) -> str:
    """Return a line with points, runs × steps, their rate and the remaining time."""
    share = progress.finished_run_steps / progress.total_run_steps
    return (
        f"{progress.finished_points:,}/{progress.total_points:,} points · "
        f"{share:.0%} of {format_count(progress.total_run_steps)} run·steps · "
        f"{format_count(progress.steps_per_s)}/s · {duration(progress.remaining_s)} left"
    )


def print_grid(table: GridTable, quantity: str, *, prints_all: bool) -> None:
    """Print the points in order of a quantity, and the summary."""
    from hotloop.bandits.grids.notation import setting_text

    rows = table.sorted(quantity)
    printed_rows = rows if prints_all else rows[:MAX_ROWS]
    results = [row.result for row in printed_rows]
    settings = list(table.ranges) or list(rows[0].settings)
    late = f"last {table.late_steps:,}"
    columns = [
        *((name, [setting_text(row.settings[name]) for row in printed_rows]) for name in settings),
        ("reward", [plus_minus(result.mean_reward) for result in results]),
        ("optimal", [plus_minus(result.mean_optimal, percent=True) for result in results]),
        ("regret", [plus_minus(result.final_regret) for result in results]),
        (f"reward, {late}", [plus_minus(result.late_reward) for result in results]),
        (f"optimal, {late}", [plus_minus(result.late_optimal, percent=True) for result in results]),
    ]
    print(f"{table.title}\n")
    print_columns(columns, num_labels=len(settings), justify="right")
    if len(printed_rows) < len(rows):
        print(f"… and {len(rows) - len(printed_rows):,} more: --all prints them")
    print(f"\n± standard error over runs\n{_summary(table)}")


def _summary(table: GridTable) -> str:
    """Return the last line: run·steps, time and file."""
    all_run_steps = len(table.rows) * table.num_runs * table.num_steps
    points = f"{len(table.rows):,} point{'s' * (len(table.rows) != 1)}"
    if not table.computed_run_steps:
        return f"{points}: all results were in {table.path}, nothing was computed"
    stored = all_run_steps - table.computed_run_steps
    stored_text = f", {format_count(stored)} were in the file" if stored > 0 else ""
    return (
        f"{points}: {format_count(table.computed_run_steps)} run·steps{stored_text}; "
        f"{table.elapsed_s:,.3f} s on {table.threads} thread{'s' * (table.threads != 1)}, "
        f"{table.kernel_share:.0%} of it in kernels, after {table.prepare_s:.1f} s of preparing "
        f"them; stored in {table.path}"
    )
