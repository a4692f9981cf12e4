"""The progress of a sweep."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.base.durations import duration
from hotloop.base.streams import is_redrawable, make_console
from hotloop.reports.sweep_table import format_params, format_score, state_table

if TYPE_CHECKING:
    from hotloop.experiments.runner import Runner


class SweepProgress:
    """The progress display of a sweep: a table in a terminal, else one line per trial."""

    def __init__(self) -> None:
        self._console = make_console()
        self._live: Live | None = None
        self._printed_trials: set[int] = set()
        self._last_draw_s = 0.0

    def show(self, runner: Runner) -> None:
        """Print the progress, in a terminal at most every half second."""
        if not is_redrawable(sys.stdout):
            self._print_finished(runner)
            return
        now = time.monotonic()
        if now - self._last_draw_s < 0.5:
            return
        self._last_draw_s = now
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._table(runner), refresh=True)

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_finished(self, runner: Runner) -> None:
        status = runner.status
        for trial in status.trials:
            number = trial.number
            if number in self._printed_trials or status.state(number) == "running":
                continue
            self._printed_trials.add(number)
            params = format_params(trial.options(status.steps))
            outcome = f"{status.state(number)} {format_score(status, number)}"
            if status.state(number) == "failed":
                outcome = f"failed with seed {status.failed_run(number).seed}"
            print(f"trial {number}{_total_suffix(runner)} · {params} · {outcome}", flush=True)

    def _table(self, runner: Runner) -> Table:
        status = runner.status
        num_finished = sum(status.state(trial.number) != "running" for trial in status.trials)
        text = f"{num_finished}{_total_suffix(runner)} trials · {len(runner.plan.seeds)} seeds each"
        remaining_s = runner.remaining_s()
        if remaining_s is not None:
            text += f" · {duration(remaining_s)} left"
        table = state_table(status)
        table.title, table.title_justify = Text(text), "left"
        return table


def _total_suffix(runner: Runner) -> str:
    return "" if runner.num_trials is None else f"/{runner.num_trials}"
