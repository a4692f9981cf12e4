"""Plots of a sweep: slices, parallel coordinates, learning curves, importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.figures import new_figure
from hotloop.base.rounding import format_number
from hotloop.experiments.results import Run, Trial
from hotloop.experiments.spaces import Choices, Range, Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL_WIDTH = 2.8  # inches
_MAX_CURVES = 200


def _position(option: Choices | Range, value: Any) -> float:
    """Return a value's position on its axis, for choices its index."""
    if isinstance(option, Choices):
        value = tuple(value) if isinstance(value, list) else value
        return float(option.values.index(value))
    return math.log10(value) if option.is_log else float(value)


def _ticks(option: Choices | Range) -> tuple[list[float], list[str]] | None:
    if isinstance(option, Choices):
        texts = [" ".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in option.values]
        return [float(k) for k in range(len(texts))], texts
    if option.is_log:
        low, high = math.ceil(math.log10(option.low)), math.floor(math.log10(option.high))
        exponents = list(range(low, high + 1))
        if len(exponents) < 2:  # less than a decade
            ends = option.low, option.high
            return list(map(math.log10, ends)), [f"{end:.3g}" for end in ends]
        return [float(x) for x in exponents], [f"1e{x}" for x in exponents]
    return None


def score_slices(space: Space, trials: Sequence[Trial], scores: Mapping[int, float]) -> Figure:
    """Draw each trial's score over each option."""
    figure = new_figure(max(_PANEL_WIDTH * len(space), 4.0), 3.0)
    axes = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    scored = [trial for trial in trials if trial.number in scores]
    for axis, (name, option) in zip(axes, space.items(), strict=True):
        x = [_position(option, trial.params[name]) for trial in scored]
        axis.scatter(x, [scores[trial.number] for trial in scored], s=12, alpha=0.7)
        axis.set_xlabel(name)
        ticks = _ticks(option)
        if ticks is not None:
            axis.set_xticks(*ticks)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("score")
    return figure


def parallel_coordinates(
    space: Space, trials: Sequence[Trial], scores: Mapping[int, float]
) -> Figure:
    """Draw a line for each trial through its options and its score, the best trial on top."""
    figure = new_figure(max(1.6 * (len(space) + 1), 4.0), 3.4)
    from matplotlib import colormaps

    axes = figure.subplots()
    scored = sorted((x for x in trials if x.number in scores), key=lambda x: scores[x.number])
    ends: list[tuple[float, float]] = []
    for option in space.values():
        positions = (
            [_position(option, x) for x in option.values]
            if isinstance(option, Choices)
            else [_position(option, option.low), _position(option, option.high)]
        )
        ends.append((min(positions), max(positions)))
    all_scores = [scores[trial.number] for trial in scored]
    ends.append((min(all_scores, default=0.0), max(all_scores, default=1.0)))
    colors = colormaps["viridis"]
    for rank, trial in enumerate(scored):
        positions = [_position(option, trial.params[name]) for name, option in space.items()]
        positions.append(scores[trial.number])
        heights = [
            (x - low) / (high - low) if high > low else 0.5
            for x, (low, high) in zip(positions, ends, strict=True)
        ]
        color = colors(rank / max(1, len(scored) - 1))
        axes.plot(range(len(heights)), heights, color=color, alpha=0.7, linewidth=1.0)
    for index, (low, high) in enumerate(ends):
        is_log = index < len(space) and getattr(list(space.values())[index], "is_log", False)
        for end, height in ((low, -0.06), (high, 1.03)):
            text = f"{10**end:.3g}" if is_log else format_number(end, high - low)
            option = list(space.values())[index] if index < len(space) else None
            if isinstance(option, Choices):
                text = str(option.values[int(end)])
            axes.text(index, height, text, ha="center", fontsize=8)
        axes.axvline(index, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(ends)), [*space, "score"])
    axes.set_yticks([])
    axes.set_ylim(-0.1, 1.1)
    return figure


def learning_curves(runs: Sequence[Run], best: int | None) -> Figure:
    """Draw the reported scores of the best trial, of stopped runs and of the others."""
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    styles: dict[str, dict[str, Any]] = {
        "others": {"color": "0.8", "linewidth": 0.8},
        "stopped": {"color": "tab:orange", "linewidth": 0.9},
        "the best": {"color": "tab:blue", "linewidth": 1.8, "zorder": 3},
    }
    labeled: set[str] = set()
    best_runs = [run for run in runs if run.trial == best]
    other_runs = [run for run in runs if run.trial != best]
    for run in (*other_runs[: max(0, _MAX_CURVES - len(best_runs))], *best_runs):
        if not run.curve:
            continue
        group = "the best" if run.trial == best else "others"
        group = "stopped" if run.state == "pruned" else group
        x, y = np.array(run.curve).T
        axes.plot(x, y, label=None if group in labeled else group, **styles[group])
        labeled.add(group)
    axes.set(xlabel="transitions", ylabel="score so far")
    if labeled:
        axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure


def option_importance(shares: Mapping[str, float]) -> Figure:
    """Draw each option's importance as a bar."""
    figure = new_figure(5.0, 0.6 + 0.4 * len(shares))
    axes = figure.subplots()
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh(names, [shares[name] for name in names])
    axes.set_xlabel("importance, PED-ANOVA")
    return figure
