"""Plots of a measure over one parameter (lines) or two (a heat map)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.checked_settings import format_setting
from hotloop.bandits.plots.canvas import (
    Z95,
    add_legend,
    new_figure,
    pick_colors,
    save_figure,
)
from hotloop.bandits.results import MeanEstimate
from hotloop.base.figures import check_plot_path
from hotloop.errors import ConfigError
from hotloop.types import Array


def parameter_study(
    families: Mapping[str, Sequence[tuple[float, MeanEstimate]]],
    path: str | Path,
    *,
    title: str,
    x_label: str = "parameter, dimensionless",
    y_label: str = "average reward per step",
    level: tuple[str, float] | None = None,
) -> None:
    """Draw a measure over each agent's parameter, one line per family, like figure 2.6.

    The parameter's axis is logarithmic (base 2) unless a parameter is zero or negative.

    Args:
        families: label → (parameter, measure) pairs.
        path, title: see the package.
        x_label: name and unit of the parameter.
        y_label: name and unit of the measure.
        level: label and height of a horizontal line for comparison.
    """
    # Draw a line with error bars for each family.
    path = check_plot_path(path)
    parameters = np.array([x for points in families.values() for x, _ in points])
    if not len(parameters):
        raise ConfigError("a parameter study needs one setting or more, got none in `families`")
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    markers = "osD^vP*X"
    colors = pick_colors(len(families))
    for index, (color, (label, points)) in enumerate(zip(colors, families.items(), strict=True)):
        ordered = sorted(points, key=lambda point: point[0])
        means = np.array([estimate.mean for _, estimate in ordered])
        errors = np.array([estimate.se for _, estimate in ordered])
        axes.errorbar(
            [x for x, _ in ordered],
            means,
            yerr=Z95 * np.nan_to_num(errors),
            color=color,
            label=label,
            marker=markers[index % len(markers)],
            markersize=5,
            linewidth=1.6,
            capsize=2.5,
            elinewidth=1,
        )
    # Draw the horizontal line, and choose a logarithmic axis if possible.
    if level is not None:
        axes.axhline(level[1], color="black", linestyle=":", linewidth=1.2, label=level[0])
        low, high = axes.get_ylim()
        margin = 0.04 * (high - low)
        axes.set_ylim(min(low, level[1] - margin), max(high, level[1] + margin))
    if (parameters > 0).all():
        low, high = np.log2(parameters.min()), np.log2(parameters.max())
        powers = np.arange(math.floor(low), math.ceil(high) + 1)
        powers = powers[:: -(-len(powers) // 14)]  # at most 14 labels fit
        axes.set_xscale("log", base=2)
        axes.set_xticks(2.0**powers, [power_of_two_text(2.0**power) for power in powers])
        axes.set_xticks([], minor=True)
        axes.set_xlim(2.0 ** (low - 0.5), 2.0 ** (high + 0.5))
    # Label the axes, and save the figure.
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    last = "" if level is None else level[0]
    add_legend(figure, axes, note="bars: 95 % confidence", last=last)
    save_figure(figure, path, title)


def heat_map(
    x_values: Sequence[Any],
    y_values: Sequence[Any],
    values: Array,
    path: str | Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    value_label: str,
    best: Callable[[Array], Any] | None = np.nanargmax,
) -> None:
    """Draw a measure over two parameters, one cell per pair, with missing cells hatched.

    Args:
        x_values: numbers or texts of the columns, left to right.
        y_values: numbers or texts of the rows, bottom to top.
        values: float, (rows, columns), NaN for missing cells.
        path, title: see the package.
        x_label: name and unit of the columns' parameter.
        y_label: name and unit of the rows' parameter.
        value_label: name and unit of the measure.
        best: function that returns the flat index of the cell to frame: `np.nanargmax`,
            `np.nanargmin` for a regret, None for no frame.
    """
    # Check the values.
    path = check_plot_path(path)
    values = np.asarray(values, np.float64)
    shape = (len(y_values), len(x_values))
    if values.shape != shape:
        raise ConfigError(
            f"`values` must have shape {shape}, a row for each of `y_values`, got {values.shape}"
        )
    if not np.isfinite(values).any():
        raise ConfigError("a heat map needs one value or more, got none: pass finite `values`")
    # Draw the map, and write the values into it.
    figure = new_figure(max(5.5, 3 + 0.75 * shape[1]), max(4.2, 2 + 0.5 * shape[0]))
    axes = figure.subplots()
    axes.set_facecolor("#e8e8e8")
    axes.patch.set_hatch("///")
    axes.patch.set_edgecolor("#c0c0c0")
    edges = np.arange(shape[1] + 1) - 0.5, np.arange(shape[0] + 1) - 0.5
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(values), cmap="viridis", linewidth=0)
    figure.colorbar(mesh, ax=axes, label=value_label)
    if values.size <= 200:
        middle = (np.nanmin(values) + np.nanmax(values)) / 2
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                color = "black" if value > middle else "white"
                text = f"{value:.4g}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    # Frame the best cell, and label the axes.
    if best is not None:
        row, column = divmod(int(best(values)), shape[1])
        position = f"{format_setting(x_values[column])}, {format_setting(y_values[row])}"
        (frame,) = axes.plot(
            column + np.array([-0.5, 0.5, 0.5, -0.5, -0.5]),
            row + np.array([-0.5, -0.5, 0.5, 0.5, -0.5]),
            color="#EE6677",
            linewidth=2.5,
            clip_on=False,
            zorder=3,
            label=f"best: {values[row, column]:.4g} at {position}",
        )
        figure.legend(handles=[frame], loc="outside lower center", frameon=False)
    axes.set_xticks(range(shape[1]), [format_setting(value) for value in x_values])
    axes.set_yticks(range(shape[0]), [format_setting(value) for value in y_values])
    axes.set_xlim(-0.5, shape[1] - 0.5)
    axes.set_ylim(-0.5, shape[0] - 0.5)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    save_figure(figure, path, title)


def power_of_two_text(value: float) -> str:
    """Return a power of two as text: 1/128 … 1/2, 1, 2, …"""
    return f"1/{1 / value:.4g}" if value < 1 else f"{value:.4g}"
