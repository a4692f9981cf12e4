"""HTML of a run for notebooks: a table and the learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hotloop.base.files import read_regular
from hotloop.base.html_page import aligned_rows, data_uri, escaped
from hotloop.base.rounding import format_number
from hotloop.errors import HotloopError
from hotloop.runs.directory import RunDirectory
from hotloop.runs.learning_curve import CURVE_FILE, learning_curve
from hotloop.runs.summary import summarize


def run_html(path: Path, extra_rows: Mapping[str, object] | None = None) -> str:
    """Return a run as HTML. A damaged run gives the error message instead."""
    try:
        summary = summarize(path)
    except HotloopError as error:
        return f"<p>{escaped(error)}</p>"
    rows: dict[str, object] = {
        "environment": summary.env_id,
        "algorithm": summary.algorithm,
        "seed": summary.seed,
        "status": summary.status,
        "steps": f"{summary.timesteps:,} of {summary.total_timesteps:,}",
        "mean return, last 100 episodes": _number(summary.mean_return, summary.std_return),
        "best evaluation": _number(summary.best_evaluation, summary.best_evaluation_std),
        "steps per second": _number(summary.steps_per_s),
        "run directory": summary.path,
        **(extra_rows or {}),
    }
    return f"{aligned_rows(rows)}{_curve(path)}"


def _number(value: float | None, spread: float | None = None) -> str:
    return "" if value is None else format_number(value, spread)


def _curve(run: Path) -> str:
    """Return the learning curve as an image. Draw the curve if its file is missing."""
    path = run / CURVE_FILE
    try:
        if not path.exists():
            learning_curve(RunDirectory.open(run))
        picture = data_uri(read_regular(path), "image/png")
    except (HotloopError, OSError) as error:
        return f"<p>no learning curve: {escaped(error)}</p>"
    return f"<img alt='learning curve' width='560' src='{picture}'>"
