"""The learning curve of one run, drawn with matplotlib into its directory."""

from __future__ import annotations

import io
from pathlib import Path

from hotloop.base.figures import new_figure, save_figure
from hotloop.base.statistics import running_mean
from hotloop.runs.directory import RunDirectory
from hotloop.runs.episodes import episodes_from_metrics

CURVE_FILE = "learning_curve.png"


def learning_curve(run: RunDirectory, *, path: Path | None = None, window: int = 100) -> Path:
    """Draw returns of episodes, their mean over `window`, and evaluations.

    Args:
        run: the run.
        path: the image. None: `learning_curve.png` in the run directory.
        window: number of episodes.

    Returns:
        The path of the image.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError, RunDirectoryError: the image cannot be written.
    """
    figure = new_figure(7, 4)
    lines = run.metrics()
    steps, returns = episodes_from_metrics(lines)
    evaluations = [
        (line["timesteps"], line["evaluation"]["mean_return"])
        for line in lines
        if line.get("evaluation")
    ]
    config = run.config
    axes = figure.subplots()
    if len(returns):
        axes.scatter(steps, returns, s=4, alpha=0.25, linewidths=0, label="training episode")
        mean = running_mean(returns, window)
        axes.plot(steps, mean, color="C1", label=f"mean of {window} episodes")
    elif not evaluations:
        axes.text(0.5, 0.5, "no finished episode", ha="center", transform=axes.transAxes)
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), "C2o-", markersize=4, label="evaluation")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right")
    axes.set_xlabel("steps")
    axes.set_ylabel("undiscounted return")
    title = f"{config['algorithm']} on {config['env_id']}, seed {config['config']['seed']}"
    axes.set_title(title, parse_math=False)
    axes.grid(alpha=0.3)
    if path is None:
        path = run.path / CURVE_FILE
        run.check_present()
    save_figure(figure, path)
    return path


def warm_up() -> None:
    """Load matplotlib and its fonts, so that later drawings are fast."""
    figure = new_figure(1, 1)
    figure.subplots().set_title("0")
    figure.savefig(io.BytesIO())
