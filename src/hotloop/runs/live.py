"""The live line of a training."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hotloop.durations import duration
from hotloop.system.processes import process_age_s

if TYPE_CHECKING:
    from hotloop.runs import Evaluation, Report


class LiveLine:
    """Shows where a run stands: redrawn in a terminal, a line now and then in a log.

    Drawn only from `show`, in the training's own thread, at most four times a second.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.report: Report | None = None
        self.evaluation: Evaluation | None = None
        self._first_timesteps = 0
        self._console = console or Console()
        self._is_live = self._console.is_terminal
        self._interval_s = 0.25 if self._is_live else 5.0
        self._shown_at = time.monotonic() - (self._interval_s if self._is_live else 0.0)
        self._live: Live | None = None
        self._drawn: Report | None = None
        self._is_broken = False

    @property
    def run_dir(self) -> Path | None:
        """Where the run is written; None before its first report."""
        return self.report.run_dir if self.report else None

    def show(self, report: Report) -> None:
        """Draw `report`, unless the last drawing is too recent.

        Whatever fails, a terminal that goes away or a drawing: the run goes on without its line.
        """
        if report.doing:
            with self._harmless():
                print(report.doing, flush=True)
            return
        is_first, self.report = self.report is None, report
        self.evaluation = report.evaluation or self.evaluation
        if is_first:
            self._first_timesteps = report.timesteps
        if not self._is_broken:
            with self._harmless():
                self._show(report, is_first=is_first)

    def close(self) -> None:
        """Draw the last report, if it was not, and leave the line standing."""
        if self.report is not None and self._drawn is not self.report and not self._is_broken:
            with self._harmless():
                self._draw(self.report)
        live, self._live = self._live, None
        if live is not None:
            with self._harmless():
                live.stop()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._is_broken = True

    def _show(self, report: Report, *, is_first: bool) -> None:
        if is_first:
            workers = report.workers and f"workers: {report.workers}"
            for line in (report.resumed, workers, f"update: {report.execution}"):
                if line:
                    print(line, flush=True)
        now = time.monotonic()
        if now - self._shown_at >= self._interval_s:
            self._shown_at = now
            self._draw(report)

    def _draw(self, report: Report) -> None:
        self._drawn = report
        text = describe(
            report,
            process_age_s(),
            first_timesteps=self._first_timesteps,
            evaluation=self.evaluation,
        )
        if self._is_live:
            if self._live is None:
                # No refresh thread: standard profilers should see one thread, the training's.
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(text, refresh=True)
        else:
            print(text.plain, flush=True)


def left_s(report: Report) -> float:
    """Return the seconds that a run still takes at the rate so far; NaN before its first step."""
    share = min(1.0, report.timesteps / report.total_timesteps)
    return report.elapsed_s * (1 / share - 1) if share > 0 else math.nan


def describe(
    report: Report,
    age_s: float,
    *,
    first_timesteps: int = 0,
    evaluation: Evaluation | None = None,
) -> Text:
    """One line: steps, rates with and without start-up, mean return, time left.

    Args:
        report: where the run stands.
        age_s: seconds since the process started.
        first_timesteps: where the process began: not at 0 if it resumed.
        evaluation: the last one.
    """
    parts = [
        f"{report.timesteps:,}/{report.total_timesteps:,} steps",
        f"{report.steps_per_s:,.0f}/s "
        f"({(report.timesteps - first_timesteps) / age_s:,.0f}/s with start-up)",
        f"mean return {'?' if math.isnan(mean := report.mean_return) else f'{mean:.1f}'}",
        *([f"evaluation {evaluation.mean_return:.1f}"] if evaluation else ()),
        f"{duration(left_s(report))} left",
    ]
    return Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")
