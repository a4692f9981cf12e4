"""Tables of a sweep: its progress and its best trials."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.base.durations import duration
from hotloop.base.streams import make_console
from hotloop.base.text_tables import print_table, wide_console
from hotloop.cli import notify
from hotloop.reports.sweep_table import best_table, format_params, format_score, state_table

if TYPE_CHECKING:
    from hotloop.sweeps.runner import Runner, SweepPlan
    from hotloop.sweeps.status import SweepStatus

_MAX_REASONS = 5


class SweepProgress:
    """The progress display of a sweep: a table in a terminal, else one line per trial.

    Args:
        plan: The plan of the sweep.
        num_grid_points: The size of the grid, or None for other samplers.
    """

    def __init__(self, plan: SweepPlan, num_grid_points: int | None) -> None:
        limits = [limit for limit in (plan.trials, num_grid_points) if limit is not None]
        self._plan, self._num_trials = plan, min(limits, default=None)
        self._console = make_console()
        self._live: Live | None = None
        self._printed_trials: set[int] = set()
        self._last_draw_s = 0.0

    def show(self, runner: Runner) -> None:
        """Print the progress, in a terminal at most every half second."""
        if not self._console.is_terminal:
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
            print(f"trial {number}{self._total_suffix()} · {params} · {outcome}", flush=True)

    def _total_suffix(self) -> str:
        return "" if self._num_trials is None else f"/{self._num_trials}"

    def _table(self, runner: Runner) -> Table:
        status = runner.status
        num_finished = sum(status.state(trial.number) != "running" for trial in status.trials)
        text = f"{num_finished}{self._total_suffix()} trials · {len(self._plan.seeds)} seeds each"
        remaining_s = runner.remaining_s(self._num_trials)
        if remaining_s is not None:
            text += f" · {duration(remaining_s)} left"
        table = state_table(status)
        table.title, table.title_justify = Text(text), "left"
        return table


def print_best(status: SweepStatus, path: Path) -> int:
    """Print the best trials and the failures. Return the number of failed trials."""
    states = {trial.number: status.state(trial.number) for trial in status.trials}
    counts = [f"{list(states.values()).count(x)} {x}" for x in ("done", "pruned", "failed")]
    print(f"\n{len(states)} trials: {', '.join(counts)}; {path}")
    if finished := [trial for trial in status.ranked() if states[trial.number] == "done"]:
        print_table(best_table(status, finished), wide_console())
    failed = [number for number, state in states.items() if state == "failed"]
    for number in failed[:_MAX_REASONS]:
        run = status.failed_run(number)
        notify(f"trial {number} failed with seed {run.seed}: {run.reason}")
    if len(failed) > _MAX_REASONS:
        notify(f"{len(failed) - _MAX_REASONS} more failed: `hotloop sweep report` lists them")
    return len(failed)
