"""Progress lines of computations."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hotloop.base.durations import duration
from hotloop.base.streams import make_console

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

    from hotloop.bandits.grids import GridProgress


class ProgressLine:
    """A progress bar of a computation, on a terminal's stderr from the first second on."""

    def __init__(self, *, after_s: float = 1.0, interval_s: float = 0.2) -> None:
        self._started_at = time.monotonic()
        self._next_at = self._started_at + after_s
        self._interval_s = interval_s
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, finished: int, total: int) -> None:
        """Draw the progress bar, at most once per interval.

        Args:
            finished: number of finished run·steps.
            total: number of all run·steps.
        """
        now = time.monotonic()
        if now < self._next_at or not sys.stderr.isatty():
            return
        self._next_at = now + self._interval_s
        if self._progress is None:
            self._progress = _progress_bar()
            self._progress.start()
            self._progress.add_task("", total=total, speed="")
        ns_per_step = (now - self._started_at) * 1e9 / max(finished, 1)
        (task,) = self._progress.task_ids
        self._progress.update(task, completed=finished, speed=f"{ns_per_step:,.1f} ns a step")
        self._progress.refresh()


def _progress_bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.completed:,} of {task.total:,} run·steps"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=make_console(stderr=True),
        transient=True,
        auto_refresh=False,  # avoids a thread beside those that compute
    )


class GridLine:
    """The progress of a grid on stderr: a redrawn line in a terminal, periodic lines in a log."""

    def __init__(self) -> None:
        self.progress: GridProgress | None = None
        self._console = make_console(stderr=True)
        self._is_live = self._console.is_terminal
        self._interval_s = 0.1 if self._is_live else 5.0
        self._shown_at = time.monotonic() - (self._interval_s if self._is_live else 0.0)
        self._live: Live | None = None

    def __enter__(self) -> GridLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, progress: GridProgress) -> None:
        """Draw it, unless the last drawing is too recent."""
        if self.progress is None and 0 < progress.stored_run_steps < progress.total_run_steps:
            share = progress.stored_run_steps / progress.total_run_steps
            print(
                f"hotloop: {progress.finished_points:,} of {progress.total_points:,} points, "
                f"{share:.0%} of all run·steps, are in the file already",
                file=sys.stderr,
            )
        self.progress = progress
        now = time.monotonic()
        if now - self._shown_at < self._interval_s:
            return
        self._shown_at = now
        if not self._is_live:
            print(progress_text(progress), file=sys.stderr, flush=True)
            return
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # No refresh thread, which would compete with those that compute.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        text = Text(progress_text(progress), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def progress_text(progress: GridProgress) -> str:
    """Return a line with points, runs × steps, their rate and the remaining time."""
    share = progress.finished_run_steps / progress.total_run_steps
    return " · ".join(
        [
            f"{progress.finished_points:,}/{progress.total_points:,} points",
            f"{share:.0%} of {format_count(progress.total_run_steps)} run·steps",
            f"{format_count(progress.steps_per_s)}/s",
            f"{duration(progress.remaining_s)} left",
        ]
    )


def format_count(number: float) -> str:
    """Return a number as text such as 12.3 M or 1.2 G."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}"
