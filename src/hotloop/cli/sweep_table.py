"""Tables of a sweep: where it stands, and which trials are best."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.cli import tell
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.durations import duration
from hotloop.statistics import bootstrap_interval

if TYPE_CHECKING:
    from hotloop.sweeps import Trial
    from hotloop.sweeps.runner import Plan, Runner, Standing

_MOST_ROWS = 10
_MOST_REASONS = 5


class Shown:
    """Shows where a sweep stands: redrawn in a terminal, a line for each trial elsewhere.

    Args:
        plan: of the sweep.
        most: points of a grid; None: it is none.
    """

    def __init__(self, plan: Plan, most: int | None) -> None:
        limits = [x for x in (plan.trials, most) if x is not None]
        self._plan, self._trials = plan, min(limits, default=None)
        self._console = Console()
        self._live: Live | None = None
        self._told: set[int] = set()
        self._shown_s = 0.0

    def show(self, runner: Runner) -> None:
        """Draw it, unless the last drawing is too recent."""
        if not self._console.is_terminal:
            self._tell(runner)
            return
        now = time.monotonic()
        if now - self._shown_s < 0.5:
            return
        self._shown_s = now
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._drawn(runner), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tell(self, runner: Runner) -> None:
        standing = runner.standing
        for trial in runner.trials:
            if not trial.number or trial.number in self._told:
                continue
            state = standing.state(trial.number)
            if state == "running":
                continue
            self._told.add(trial.number)
            print(
                f"trial {trial.number}{self._of()} · {told(trial.became(runner.steps))} · {state} "
                f"{scored(standing, trial.number)}",
                flush=True,
            )

    def _of(self) -> str:
        return "" if self._trials is None else f"/{self._trials}"

    def _drawn(self, runner: Runner) -> Table:
        standing = runner.standing
        done = sum(standing.state(one.number) != "running" for one in runner.trials if one.number)
        text = f"{done}{self._of()} trials · {len(self._plan.seeds)} seeds each"
        left = runner.seconds_left(self._trials)
        if left is not None:
            text += f" · {duration(left)} left"
        table = plain_table()
        table.title, table.title_justify = Text(text), "left"
        for heading in ("trial", "options", "state", "score"):
            table.add_column(heading)
        for one in ordered(runner)[:_MOST_ROWS]:
            number = one.number
            state = standing.state(number)
            table.add_row(
                f"{number}", told(one.became(runner.steps)), state, scored(standing, number)
            )
        return table


def ordered(runner: Runner) -> list[Trial]:
    """Return all trials, the best first, and those whose score is not known last."""

    def place(one: Trial) -> tuple[bool, float]:
        score = runner.standing.score(one.number)
        return score is None, -(score or 0.0)

    return sorted((one for one in runner.trials if one.number), key=place)


def told(params: dict[str, Any]) -> str:
    """Return options in words."""

    def one(x: Any) -> str:
        if isinstance(x, float):
            return f"{x:.4g}"
        return " ".join(map(str, x)) if isinstance(x, list | tuple) else str(x)

    return ", ".join(f"{name} {one(x)}" for name, x in params.items()) or "the defaults"


def scored(standing: Standing, trial: int) -> str:
    """Return a trial's score, with its interval over seeds where there are three or more."""
    score = standing.score(trial)
    if score is None:
        return "–"
    scores = np.array(list(standing.scores(trial).values()))
    if len(scores) < 3:
        return f"{score:.4g}"
    low, high = bootstrap_interval(scores[:, None])
    return f"{score:.4g} ({float(low[0]):.4g} to {float(high[0]):.4g})"


def print_best(runner: Runner) -> int:
    """Print the best trials and what failed; return how many trials failed."""
    standing = runner.standing
    trials = [one for one in runner.trials if one.number]
    states = {one.number: standing.state(one.number) for one in trials}
    done = [one for one in ordered(runner) if states[one.number] == "done"]
    counts = [f"{list(states.values()).count(x)} {x}" for x in ("done", "pruned", "failed")]
    print(f"\n{len(trials)} trials: {', '.join(counts)}; {runner.results.path}")
    if done:
        table = plain_table()
        table.add_column("trial", justify="right")
        for name in done[0].params:
            table.add_column(name)
        table.add_column("score")
        for one in done[:_MOST_ROWS]:
            cells = [told({"": x}).strip() for x in one.became(runner.steps).values()]
            table.add_row(f"{one.number}", *cells, scored(standing, one.number))
        print_table(table, wide_console())
    failed = [one for one in trials if states[one.number] == "failed"]
    reasons = {
        one.number: next(run.reason for run in standing.runs(one.number) if run.state == "failed")
        for one in failed
    }
    for number, reason in list(reasons.items())[:_MOST_REASONS]:
        tell(f"trial {number} failed: {reason}")
    if len(reasons) > _MOST_REASONS:
        tell(f"{len(reasons) - _MOST_REASONS} more failed: `hotloop sweep report` lists them")
    return len(failed)
