"""Tables and texts about the trials of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from hotloop.base.rounding import format_interval, format_number
from hotloop.base.statistics import bootstrap_interval
from hotloop.base.text_tables import plain_table
from hotloop.sweeps.results import Trial
from hotloop.sweeps.status import SweepStatus

MAX_ROWS = 10


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


def best_table(status: SweepStatus, trials: Sequence[Trial]) -> Table:
    """Return a table of finished trials, with a column for each option."""
    table = plain_table()
    table.add_column("trial", justify="right")
    for name in trials[0].params:
        table.add_column(name)
    table.add_column("score")
    for trial in trials[:MAX_ROWS]:
        cells = map(format_value, trial.options(status.steps).values())
        table.add_row(f"{trial.number}", *cells, format_score(status, trial.number))
    return table
