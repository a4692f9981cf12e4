"""HTML of a run for notebooks: a table, the learning curve, where the time went."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from hotloop.errors import HotloopError
from hotloop.runs.directory import RunDirectory
from hotloop.runs.plots import CURVE_FILE, learning_curve
from hotloop.runs.summary import summarise


def run_html(path: Path, more: Mapping[str, object] | None = None) -> str:
    """Return a run as HTML.

    Args:
        path: its directory, damaged ones too.
        more: what the table says besides.
    """
    try:
        about = summarise(path)
    except HotloopError as error:
        return f"<p>{html.escape(str(error))}</p>"
    rows: dict[str, object] = {
        "environment": about.env_id,
        "algorithm": about.algorithm,
        "seed": about.seed,
        "status": about.status,
        "steps": f"{about.timesteps:,} of {about.total_timesteps:,}",
        "mean return, last 100 episodes": _number(about.mean_return),
        "best evaluation": _number(about.best_evaluation),
        "steps a second": _number(about.steps_per_s),
        "run directory": about.path,
        **(more or {}),
    }
    lines = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f"<table>{lines}</table>{_curve(path)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _curve(run: Path) -> str:
    """Return the learning curve, drawn where it is missing."""
    path = run / CURVE_FILE
    try:
        if not path.exists():
            learning_curve(RunDirectory.open(run))
        picture = base64.b64encode(path.read_bytes()).decode()
    except (HotloopError, OSError) as error:
        return f"<p>no learning curve: {html.escape(str(error))}</p>"
    return f"<img alt='learning curve' width='560' src='data:image/png;base64,{picture}'>"
