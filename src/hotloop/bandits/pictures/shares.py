"""Shares of the arms that were taken, over steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotloop.bandits.environments import Environment
from hotloop.bandits.pictures.canvas import (
    check_picture,
    colors_for,
    in_lines,
    labels_of,
    new_figure,
    title_of,
    write,
)
from hotloop.bandits.results import Result
from hotloop.errors import ConfigError
from hotloop.types import Array


def arm_shares(results: Sequence[Result], path: str | Path, *, title: str | None = None) -> None:
    """Draw which arms were taken over steps, a panel an agent.

    The best arm lies at the bottom where the arms' values are given. Where each run draws its own
    values, no arm is better than another over all runs, and shares tell of an agent's habits only.

    Args:
        results: at least one, made with `arm_shares=True`.
        path: where to.
        title: above all.

    Raises:
        ConfigError: there is no result, one has no shares, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = labels_of(results)
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
        layers = _layers(result.environment, result.arm_share.shape[1])
        edges, share = _thinned(result)
        axes.stackplot(
            edges,
            100 * (np.vstack([share[:1], share]) @ layers.groups).T,
            labels=layers.labels,
            colors=layers.colors,
            step="pre",  # a share belongs to all of its point's steps
            linewidth=0,
            antialiased=False,  # else white seams between layers
        )
        axes.set_title(in_lines(label, 42), fontsize="medium")
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
    write(figure, path, title or title_of(results))


class _Layers(NamedTuple):
    """How arms are stacked: float64 (k, layers) that adds arms up, and a label and colour each."""

    groups: Array
    labels: list[str]
    colors: list[Any]


def _layers(environment: Environment, num_arms: int, at_most: int = 12) -> _Layers:
    """The best arm first, and arms beyond `at_most` as one layer."""
    from matplotlib import colormaps

    means = getattr(environment, "means", None)
    order = list(range(num_arms))
    if means is not None:
        order.sort(key=lambda arm: -means[arm])
    apart = order if num_arms <= at_most else order[: at_most - 1]
    labels = [f"{arm} ({means[arm]:.4g})" if means is not None else f"{arm}" for arm in apart]
    groups = np.zeros((num_arms, len(apart) + (num_arms > len(apart))))
    groups[apart, range(len(apart))] = 1
    if num_arms > len(apart):
        groups[order[len(apart) :], -1] = 1
        labels.append(f"{num_arms - len(apart)} others")
    if means is not None:  # from the best to the worst, from dark to light
        colors = list(colormaps["viridis"](np.linspace(0.05, 1, groups.shape[1])))
    else:
        colors = colors_for(groups.shape[1])
    return _Layers(groups, labels, colors)


def _thinned(result: Result, at_most: int = 250) -> tuple[Array, Array]:
    """Shares of fewer points, each the mean of several: a picture has only so many columns.

    Returns:
        Where they begin and end, int64, (points + 1,), and the shares, float64, (points, k).
    """
    assert result.sums.arm_pulls is not None
    stride = -(-len(result.step) // at_most)
    starts = np.arange(0, len(result.step), stride)
    pulls = np.add.reduceat(result.sums.arm_pulls, starts)
    edges = np.concatenate([[0], result.step[starts[1:] - 1], result.step[-1:]])
    return edges, pulls / pulls.sum(axis=1, keepdims=True)
