"""Progress of a computation, on one line."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hotloop.durations import duration

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

    from hotloop.sweeps.bandits import GridProgress


class ProgressLine:
    """How far a computation is, on a terminal's stderr, once it has taken a second."""

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

    def show(self, behind: int, total: int) -> None:
        """Draw it, unless it was drawn a moment ago.

        Args:
            behind: runs' steps that are done.
            total: that there are.
        """
        now = time.monotonic()
        if now < self._next_at or not sys.stderr.isatty():
            return
        self._next_at = now + self._interval_s
        if self._progress is None:
            self._progress = _progress_bar()
            self._progress.start()
            self._progress.add_task("", total=total, speed="")
        ns_per_step = (now - self._started_at) * 1e9 / max(behind, 1)
        (task,) = self._progress.task_ids
        self._progress.update(task, completed=behind, speed=f"{ns_per_step:,.1f} ns a step")
        self._progress.refresh()


def _progress_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.completed:,} of {task.total:,} run·steps"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # no thread of its own beside those that compute
    )


class GridLine:
    """Where a grid stands, on stderr: redrawn in a terminal, a line now and then in a log."""

    def __init__(self) -> None:
        from rich.console import Console

        self.progress: GridProgress | None = None
        self._console = Console(stderr=True)
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
        if self.progress is None and 0 < progress.kept_run_steps < progress.all_run_steps:
            share = progress.kept_run_steps / progress.all_run_steps
            print(
                f"hotloop: {progress.points:,} of {progress.all_points:,} points, {share:.0%} of "
                "all run·steps, are in the file already",
                file=sys.stderr,
            )
        self.progress = progress
        now = time.monotonic()
        if now - self._shown_at < self._interval_s:
            return
        self._shown_at = now
        if not self._is_live:
            print(describe(progress), file=sys.stderr, flush=True)
            return
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # Without a thread of its own: one less beside those that compute.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        text = Text(describe(progress), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(progress: GridProgress) -> str:
    """One line: points, runs × steps, their rate, time left."""
    share = progress.run_steps / progress.all_run_steps
    return " · ".join(
        [
            f"{progress.points:,}/{progress.all_points:,} points",
            f"{share:.0%} of {short(progress.all_run_steps)} run·steps",
            f"{short(progress.steps_per_s)}/s",
            f"{duration(progress.left_s)} left",
        ]
    )


def short(number: float) -> str:
    """12.3 M, 1.2 G."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
