"""Plots of distributions: regret over runs, rewards of arms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotloop.bandits.plots.canvas import (
    COLORS,
    check_regret,
    default_title,
    new_figure,
    pick_colors,
    result_labels,
    save_figure,
    wrap,
)
from hotloop.bandits.results import BanditResult
from hotloop.base.figures import check_plot_path
from hotloop.base.rounding import format_number
from hotloop.errors import ConfigError
from hotloop.types import Array

# Vertical offsets of the caps of a box's two whiskers.
_CAPS = np.array([-0.12, 0.12, math.nan, -0.12, 0.12])


def regret_boxes(
    results: Sequence[BanditResult], path: str | Path, *, title: str | None = None
) -> None:
    """Draw the distribution of the final regret over runs, one box per agent.

    A box contains the middle half of the runs, its whiskers the middle 90 %. The results need
    their `final_regrets`.
    """
    # Check the results.
    path = check_plot_path(path)
    labels = result_labels(results)
    check_regret(results)
    if not all(len(result.final_regrets) for result in results):
        raise ConfigError(
            "boxes need the regret of each run, which results from stored sums don't have: run "
            "the agents again with `compare`"
        )
    # Draw a box with whiskers for each result.
    figure = new_figure(9, 1.9 + 0.55 * len(results))
    axes = figure.subplots()
    for row, (color, result) in enumerate(zip(pick_colors(len(results)), results, strict=True)):
        regrets = result.final_regrets
        low, lower, median, upper, high = np.percentile(regrets, (5, 25, 50, 75, 95))
        axes.plot([low, high], [row, row], color="black", linewidth=1, zorder=1)
        axes.plot([low, low, math.nan, high, high], row + _CAPS, color="black", linewidth=1)
        box = {"facecolor": color, "edgecolor": "black", "linewidth": 1, "zorder": 2}
        axes.barh(row, upper - lower, left=lower, height=0.56, label="_box", **box)
        axes.plot(
            [median, median],
            [row - 0.28, row + 0.28],
            color="black",
            linewidth=2.2,
            label=None if row else "median",
            zorder=3,
        )
        axes.plot(
            [regrets.mean()],
            [row],
            linestyle="",
            marker="D",
            markersize=6,
            markerfacecolor="white",
            markeredgecolor="black",
            label=None if row else "mean",
            zorder=4,
        )
    # Label the axes, and save the figure.
    axes.set_yticks(range(len(results)), [wrap(label, 36) for label in labels])
    axes.invert_yaxis()  # the first agent on top, as in the table
    axes.set_xlabel("cumulative regret of a run at its end, units of reward")
    axes.set_ylabel("agent")
    axes.set_title(
        f"after {results[0].num_steps:,} steps; box: middle half of "
        f"{len(results[0].final_regrets):,} runs, whiskers: middle 90 %",
        fontsize="medium",
    )
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, path, title or default_title(results))


def reward_distributions(
    means: Sequence[float] | Array, noise: float, path: str | Path, *, title: str
) -> None:
    """Draw each arm's reward distribution N(mean, noise²) as a violin, like figure 2.1.

    The violins show exact densities, cut where 1 reward in 1,000 lies beyond either end.

    Args:
        means: the arms' true values.
        noise: standard deviation of a reward.
        path, title: see the package.
    """
    path = check_plot_path(path)
    figure = new_figure(9, 5.2)
    axes = figure.subplots()
    z = np.linspace(-3.0902, 3.0902, 201)
    half_width = 0.42 * np.exp(-(z**2) / 2)
    best = int(np.argmax(means))
    for arm, mean in enumerate(means):
        axes.fill_betweenx(
            mean + noise * z,
            arm - half_width,
            arm + half_width,
            color=COLORS[1] if arm == best else COLORS[0],
            alpha=0.65,
            linewidth=0,
        )
        axes.plot([arm - 0.42, arm + 0.42], [mean, mean], color="black", linewidth=1.2)
        axes.text(
            arm,
            mean + 0.04 * noise,
            format_number(mean, noise / 10),
            fontsize=8,
            ha="center",
            va="bottom",
        )
    axes.axhline(0, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(means)))
    axes.set_xlabel("arm, number")
    axes.set_ylabel("reward, units of its standard deviation" if noise == 1 else "reward")
    axes.grid(alpha=0.3, axis="y")
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=COLORS[0], alpha=0.65, label="reward distribution"),
        Patch(color=COLORS[1], alpha=0.65, label="distribution of the best arm"),
        Line2D([], [], color="black", linewidth=1.2, label="true value"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    save_figure(figure, path, title)
