"""The progress line of a training."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from hotloop.base.durations import duration
from hotloop.base.processes import process_age_s
from hotloop.base.rounding import format_number, format_rate
from hotloop.base.streams import is_redrawable, make_console
from hotloop.training.notebook_cell import NotebookCell

if TYPE_CHECKING:
    from hotloop.runs import Evaluation, Report


class LiveLine:
    """A progress line, redrawn in place in a terminal and printed every five seconds in a log.

    A notebook shows the learning curve below it.

    Only `show` draws, in the training's thread, at most four times a second.

    Args:
        write: function that receives each line, instead of standard output.
        age_s: function that returns the time since the start, by default of the process.
    """

    def __init__(
        self,
        *,
        write: Callable[[str], None] | None = None,
        age_s: Callable[[], float] = process_age_s,
    ) -> None:
        self.report: Report | None = None
        self.evaluation: Evaluation | None = None
        self._first_timesteps = 0
        self._console = make_console()
        self._is_live = write is None and is_redrawable(sys.stdout)
        self._write, self._age_s = write or (lambda text: print(text, flush=True)), age_s
        self._cell = NotebookCell.current() if write is None else None
        if self._is_live:
            self._interval_s = 0.25
        elif self._cell is not None:
            self._interval_s = 1.0
        else:
            self._interval_s = 5.0
        is_first_line_due = self._is_live or self._cell is not None
        self._last_draw_s = time.monotonic() - (self._interval_s if is_first_line_due else 0.0)
        self._live: Live | None = None
        self._last_drawn: Report | None = None
        self._is_broken = False

    @property
    def run_dir(self) -> Path | None:
        """The run directory, or None before the first report."""
        return self.report.run_dir if self.report else None

    def show(self, report: Report) -> None:
        """Draw a report, unless the last one was drawn too recently.

        If drawing fails, e.g. in a closed terminal, the run continues without a progress line.
        """
        if report.activity:
            with self._ignore_errors():
                self._write(report.activity)
            return
        is_first, self.report = self.report is None, report
        self.evaluation = report.evaluation or self.evaluation
        if is_first:
            self._first_timesteps = report.timesteps
        if not self._is_broken:
            with self._ignore_errors():
                self._show(report, is_first=is_first)

    def close(self) -> None:
        """Draw the last report if necessary, and stop updating the line."""
        if self.report is not None and self._last_drawn is not self.report and not self._is_broken:
            with self._ignore_errors():
                self._draw(self.report)
        live, self._live = self._live, None
        if live is not None:
            with self._ignore_errors():
                live.stop()

    @contextlib.contextmanager
    def _ignore_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._is_broken = True

    def _show(self, report: Report, *, is_first: bool) -> None:
        if is_first:
            workers = report.workers and f"workers: {report.workers}"
            execution = report.execution and f"update: {report.execution}"
            for line in (report.resumed, workers, report.interface, execution):
                if line:
                    self._write(line)
        if self._cell is not None:
            self._cell.add(report)
        now = time.monotonic()
        if now - self._last_draw_s >= self._interval_s:
            self._last_draw_s = now
            self._draw(report)

    def _draw(self, report: Report) -> None:
        self._last_drawn = report
        text = progress_text(
            report,
            self._age_s(),
            first_timesteps=self._first_timesteps,
            evaluation=self.evaluation,
        )
        if self._cell is not None:
            self._cell.show(text.plain, report.total_timesteps)
        elif self._is_live:
            if self._live is None:
                # Start no refresh thread: other profilers should find only the training's thread.
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(text, refresh=True)
        else:
            self._write(text.plain)


def remaining_s(report: Report) -> float:
    """Return the remaining seconds at the average rate so far, NaN before the first step."""
    share = min(1.0, report.timesteps / report.total_timesteps)
    return report.elapsed_s * (1 / share - 1) if share > 0 else math.nan


def progress_text(
    report: Report,
    age_s: float,
    *,
    first_timesteps: int = 0,
    evaluation: Evaluation | None = None,
) -> Text:
    """Return a line with steps, rates with and without start-up, mean return and remaining time.

    Before the first step of this process it has the number of steps alone.

    Args:
        report: the latest report.
        age_s: seconds since the process started.
        first_timesteps: steps of the run when this process started, 0 unless it was resumed.
        evaluation: the latest evaluation.
    """
    mean = report.mean_return
    steps = f"{report.timesteps:,}/{report.total_timesteps:,} steps"
    if report.timesteps == first_timesteps:  # there is no rate yet
        return Text(steps)
    parts = [
        steps,
        f"{format_rate(report.steps_per_s)}/s "
        f"({format_rate((report.timesteps - first_timesteps) / age_s)}/s with start-up)",
        f"mean return {'?' if math.isnan(mean) else format_number(mean, report.std_return)}",
        *([f"evaluation {_evaluation_text(evaluation)}"] if evaluation else ()),
        f"{duration(remaining_s(report))} left",
    ]
    return Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")


def _evaluation_text(evaluation: Evaluation) -> str:
    return format_number(evaluation.mean_return, evaluation.std_return)
