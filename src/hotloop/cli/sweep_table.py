"""Tables of a sweep: its progress and its best trials."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.base.durations import duration
from hotloop.base.rounding import format_interval, format_number
from hotloop.base.statistics import bootstrap_interval
from hotloop.base.streams import make_console
from hotloop.base.text_tables import plain_table, print_table, wide_console
from hotloop.cli import notify

if TYPE_CHECKING:
    from hotloop.sweeps import Run, Trial
    from hotloop.sweeps.runner import Runner, SweepPlan, SweepStatus

_MAX_ROWS = 10
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
        for trial in runner.trials:
            if not trial.number or trial.number in self._printed_trials:
                continue
            state = status.state(trial.number)
            if state == "running":
                continue
            self._printed_trials.add(trial.number)
            name = f"trial {trial.number}{self._total_suffix()}"
            params = format_params(trial.options(runner.steps))
            outcome = f"{state} {format_score(status, trial.number)}"
            if state == "failed":
                outcome = f"failed with seed {failed_run(status, trial.number).seed}"
            print(f"{name} · {params} · {outcome}", flush=True)

    def _total_suffix(self) -> str:
        return "" if self._num_trials is None else f"/{self._num_trials}"

    def _table(self, runner: Runner) -> Table:
        status = runner.status
        num_finished = sum(status.state(x.number) != "running" for x in runner.trials if x.number)
        text = f"{num_finished}{self._total_suffix()} trials · {len(self._plan.seeds)} seeds each"
        remaining_s = runner.remaining_s(self._num_trials)
        if remaining_s is not None:
            text += f" · {duration(remaining_s)} left"
        table = plain_table()
        table.title, table.title_justify = Text(text), "left"
        for heading in ("trial", "options", "state", "score"):
            table.add_column(heading)
        for trial in ranked_trials(runner)[:_MAX_ROWS]:
            number = trial.number
            state = status.state(number)
            params = format_params(trial.options(runner.steps))
            table.add_row(f"{number}", params, state, format_score(status, number))
        return table


def ranked_trials(runner: Runner) -> list[Trial]:
    """Return all trials by score, best first, and trials without a score last."""

    def place(trial: Trial) -> tuple[bool, float]:
        score = runner.status.score(trial.number)
        return score is None, -(score or 0.0)

    return sorted((trial for trial in runner.trials if trial.number), key=place)


def format_params(params: dict[str, Any]) -> str:
    """Return options as text."""

    def format_value(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4g}"
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return ", ".join(f"{name} {format_value(x)}" for name, x in params.items()) or "the defaults"


def format_score(status: SweepStatus, trial: int) -> str:
    """Return a trial's score as text, with an interval if it has three or more seeds."""
    score = status.score(trial)
    if score is None:
        return "–"
    scores = np.array(list(status.scores(trial).values()))
    if len(scores) < 3:
        return format_number(score)
    low, high = bootstrap_interval(scores[:, None])
    return format_interval(score, (float(low[0]), float(high[0])))


def failed_run(status: SweepStatus, trial: int) -> Run:
    """Return the first failed run of a failed trial."""
    return next(run for run in status.runs(trial) if run.state == "failed")


def print_best(runner: Runner) -> int:
    """Print the best trials and the failures. Return the number of failed trials."""
    status = runner.status
    trials = [trial for trial in runner.trials if trial.number]
    states = {trial.number: status.state(trial.number) for trial in trials}
    finished_trials = [trial for trial in ranked_trials(runner) if states[trial.number] == "done"]
    counts = [f"{list(states.values()).count(x)} {x}" for x in ("done", "pruned", "failed")]
    print(f"\n{len(trials)} trials: {', '.join(counts)}; {runner.results.path}")
    if finished_trials:
        table = plain_table()
        table.add_column("trial", justify="right")
        for name in finished_trials[0].params:
            table.add_column(name)
        table.add_column("score")
        for trial in finished_trials[:_MAX_ROWS]:
            cells = [format_params({"": x}).strip() for x in trial.options(runner.steps).values()]
            table.add_row(f"{trial.number}", *cells, format_score(status, trial.number))
        print_table(table, wide_console())
    failed = [trial for trial in trials if states[trial.number] == "failed"]
    for trial in failed[:_MAX_REASONS]:
        run = failed_run(status, trial.number)
        notify(f"trial {trial.number} failed with seed {run.seed}: {run.reason}")
    if len(failed) > _MAX_REASONS:
        notify(f"{len(failed) - _MAX_REASONS} more failed: `hotloop sweep report` lists them")
    return len(failed)
