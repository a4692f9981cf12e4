"""Tables and texts about the trials of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from hotloop.base.rounding import format_interval, format_number
from hotloop.base.statistics import bootstrap_interval
from hotloop.base.text_tables import plain_table, print_columns
from hotloop.experiments.status import SweepStatus

MAX_ROWS, _MAX_REASONS = 10, 5


def format_value(value: Any) -> str:
    """Return an option's value as text."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def format_params(params: dict[str, Any]) -> str:
    """Return options as text."""
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


def state_table(status: SweepStatus) -> Table:
    """Return the best trials so far, with their options and states."""
    table = plain_table()
    for heading in ("trial", "options", "state", "score"):
        table.add_column(heading)
    for trial in status.ranked()[:MAX_ROWS]:
        number = trial.number
        params = format_params(trial.options(status.steps))
        table.add_row(f"{number}", params, status.state(number), format_score(status, number))
    return table


def print_best(status: SweepStatus, path: Path) -> list[str]:
    """Print the number of trials and the best ones. Return notes on failed trials."""
    states = {trial.number: status.state(trial.number) for trial in status.trials}
    counts = [f"{list(states.values()).count(x)} {x}" for x in ("done", "pruned", "failed")]
    print(f"\n{len(states)} trials: {', '.join(counts)}; {path}")
    best = [trial for trial in status.ranked() if states[trial.number] == "done"][:MAX_ROWS]
    if best:
        columns = [("trial", [f"{trial.number}" for trial in best])]
        for name in best[0].params:
            columns.append((name, [format_value(x.options(status.steps)[name]) for x in best]))
        columns.append(("score", [format_score(status, trial.number) for trial in best]))
        print_columns(columns, num_texts=len(columns) - 1, justify="right")
    failed = [number for number, state in states.items() if state == "failed"]
    runs = [status.failed_run(number) for number in failed[:_MAX_REASONS]]
    notes = [f"trial {x.trial} failed with seed {x.seed}: {x.reason}" for x in runs]
    if len(failed) > len(runs):
        notes.append(f"{len(failed) - len(runs)} more failed: `hotloop sweep report` lists them")
    return notes
