"""Plots of each arm's share of pulls over steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.environments import Environment
from hotloop.bandits.plots.canvas import (
    default_title,
    new_figure,
    pick_colors,
    result_labels,
    save_figure,
    wrap,
)
from hotloop.bandits.results import BanditResult
from hotloop.base.figures import check_plot_path
from hotloop.errors import ConfigError
from hotloop.types import Array


def arm_shares(
    results: Sequence[BanditResult], path: str | Path, *, title: str | None = None
) -> None:
    """Draw each arm's share of pulls over steps, one panel per agent.

    The best arm is at the bottom if the arms' values are fixed. If each run draws its values, no
    arm is better than another over all runs, and shares only show an agent's preferences.
    The results need to be computed with `arm_shares=True`.
    """
    path = check_plot_path(path)
    labels = result_labels(results)
    num_columns = min(len(results), 3)
    num_rows = -(-len(results) // num_columns)
    figure = new_figure(1.5 + 4.2 * num_columns, 1.2 + 3.2 * num_rows)
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).flat
    for axes in panels[len(results) :]:
        axes.remove()
    for axes, label, result in zip(panels, labels, results, strict=False):
        if result.arm_share is None:
            raise ConfigError(
                f"the result of {label} has no shares of arms: run it with `arm_shares=True`"
            )
        groups, names, colors = _layers(result.environment, result.arm_share.shape[1])
        edges, share = _thin_shares(result)
        axes.stackplot(
            edges,
            100 * (np.vstack([share[:1], share]) @ groups).T,
            labels=names,
            colors=colors,
            step="pre",  # a share applies to all steps of its point
            linewidth=0,
            antialiased=False,  # avoids white seams between layers
        )
        axes.set_title(wrap(label, 42), fontsize="medium")
        axes.set_xlim(0, result.num_steps)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(0, 100)
        axes.set_xlabel("steps")
        axes.set_ylabel("share of pulls, %")
        axes.tick_params(labelbottom=True, labelleft=True)
    handles, names = panels[0].get_legend_handles_labels()
    means = getattr(results[0].environment, "means", None)
    heading = "arm" if means is None else "arm (true value)"
    figure.legend(handles[::-1], names[::-1], loc="outside right center", title=heading)
    save_figure(figure, path, title or default_title(results))


def _layers(
    environment: Environment, num_arms: int, max_layers: int = 12
) -> tuple[Array, list[str], list[Any]]:
    """Return layers, the best arm first, and arms beyond `max_layers` as one layer.

    They are a float64 (k, layers) matrix that adds up arms, and the labels and colors of layers.
    """
    from matplotlib import colormaps

    means = getattr(environment, "means", None)
    order = list(range(num_arms))
    if means is not None:
        order.sort(key=lambda arm: -means[arm])
    single_arms = order if num_arms <= max_layers else order[: max_layers - 1]
    labels = [f"{arm} ({means[arm]:.4g})" if means is not None else f"{arm}" for arm in single_arms]
    groups = np.zeros((num_arms, len(single_arms) + (num_arms > len(single_arms))))
    groups[single_arms, range(len(single_arms))] = 1
    if num_arms > len(single_arms):
        groups[order[len(single_arms) :], -1] = 1
        labels.append(f"{num_arms - len(single_arms)} others")
    if means is not None:  # colors from dark for the best arm to light for the worst
        colors = list(colormaps["viridis"](np.linspace(0.05, 1, groups.shape[1])))
    else:
        colors = pick_colors(groups.shape[1])
    return groups, labels, colors


def _thin_shares(result: BanditResult, max_points: int = 250) -> tuple[Array, Array]:
    """Average over neighbors: edges, int64, (points + 1,), and shares, float64, (points, k)."""
    # A plot has a limited number of columns.
    assert result.sums.arm_pulls is not None
    stride = -(-len(result.step) // max_points)
    starts = np.arange(0, len(result.step), stride)
    pulls = np.add.reduceat(result.sums.arm_pulls, starts)
    edges = np.concatenate([[0], result.step[starts[1:] - 1], result.step[-1:]])
    return edges, pulls / pulls.sum(axis=1, keepdims=True)
