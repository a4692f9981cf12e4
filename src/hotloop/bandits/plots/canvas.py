"""Shared parts of the plots: files, colors, bands, legends, titles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.results import BanditResult
from hotloop.base import figures
from hotloop.errors import ConfigError
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Two-sided 95 % of a normal distribution: means over hundreds of runs are close to normal.
Z95 = 1.959964

# Paul Tol's "bright", then his "muted": distinguishable with any kind of color vision.
COLORS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"),
    *("#332288", "#999933", "#882255", "#44AA99", "#DDAA77", "#777777"),
)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure. See `hotloop.base.figures.new_figure`."""
    return figures.new_figure(width, height, extra="bandit", purpose="drawing a plot")


def wrap(text: str, width: int) -> str:
    """Wrap a text at `width` characters, in three lines at most to leave room for the axes."""
    return fill(text, width, max_lines=3, placeholder=" …")


def save_figure(figure: Figure, path: Path, title: str) -> None:
    width = int(figure.get_figwidth() * 11)
    figure.suptitle("\n".join(wrap(line, width) for line in title.split("\n")))
    figures.save_figure(figure, path)


def pick_colors(num: int) -> list[Any]:
    if num <= len(COLORS):
        return list(COLORS[:num])
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.03, 0.97, num)))


def draw_band(axes: Any, step: Array, mean: Array, se: Array, color: Any, label: str) -> None:
    marker = "o" if len(step) == 1 else None  # a single point has no line
    axes.plot(step, mean, color=color, label=label, linewidth=1.2, marker=marker)
    half_width = Z95 * np.nan_to_num(se)
    axes.fill_between(
        step, mean - half_width, mean + half_width, color=color, alpha=0.25, linewidth=0
    )


def add_legend(figure: Figure, axes: Any, *, note: str, last: str = "") -> None:
    """Add one legend for all panels below them, because long labels would cover curves.

    `last` is the label that comes last.
    """
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] == last)
    handles, labels = [handles[k] for k in order], [labels[k] for k in order]
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 11) // (widest + 8)))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=note,
        title_fontsize="small",
        fontsize="medium" if len(labels) <= 12 else "small",
    )


def result_labels(results: Sequence[BanditResult]) -> list[str]:
    """Return the legend labels, with the environment if the results differ in it.

    Raises:
        ConfigError: there is no result.
    """
    if not results:
        raise ConfigError("a plot needs one result or more, got none: pass a result of `run`")
    labels = [result.agent.label for result in results]
    if share_environment(results):
        return labels
    environments = [result.environment.label for result in results]
    return [f"{label}; {name}" for label, name in zip(labels, environments, strict=True)]


def share_environment(results: Sequence[BanditResult]) -> bool:
    first = results[0].environment
    return all(result.environment is first or result.environment == first for result in results[1:])


def default_title(results: Sequence[BanditResult]) -> str:
    environment = results[0].environment.label if share_environment(results) else "environments"
    first = results[0]
    return f"{environment}\n{first.num_runs:,} runs of {first.num_steps:,} steps, seed {first.seed}"


def check_regret(results: Sequence[BanditResult]) -> None:
    if not all(np.isfinite(result.regret).all() for result in results):
        raise ConfigError(
            f"the environment '{results[0].environment.label}' does not provide its arms' true "
            "values, so there is no regret to draw: define its `mean`"
        )
