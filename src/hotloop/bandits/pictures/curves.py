"""Curves over steps: reward, optimal actions, regret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotloop.bandits.bounds import lai_robbins
from hotloop.bandits.pictures.canvas import (
    check_picture,
    check_regret,
    colors_for,
    draw_band,
    have_one_environment,
    labels_of,
    legend_below,
    new_figure,
    title_of,
    write,
)
from hotloop.bandits.results import Result


def learning_curves(
    results: Sequence[Result], path: str | Path, *, title: str | None = None
) -> None:
    """Draw the average reward and the share of optimal actions over steps.

    Args:
        results: at least one. Where none knows what was optimal (a user's environment without
            `mean`), the reward alone is drawn.
        path: where to.
        title: above all; by default the environment and how many runs there are.

    Raises:
        ConfigError: there is no result, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = labels_of(results)
    knows_optimal = any(np.isfinite(result.optimal).any() for result in results)
    figure = new_figure(8, 7.5 if knows_optimal else 4.5)
    panels = figure.subplots(2 if knows_optimal else 1, sharex=True, squeeze=False)[:, 0]
    every = max(result.steps_per_point for result in results)
    smoothed = f" (mean of {every:,} steps a point)" if every > 1 else ""
    for color, label, result in zip(colors_for(len(results)), labels, results, strict=True):
        draw_band(panels[0], result.step, result.reward, result.reward_se, color, label)
        if knows_optimal:
            percent = 100 * result.optimal, 100 * result.optimal_se
            draw_band(panels[1], result.step, *percent, color, label)
    panels[0].set_title(f"average reward{smoothed}", fontsize="medium")
    panels[0].set_ylabel("reward per step")
    if knows_optimal:
        panels[1].set_title(f"optimal action{smoothed}", fontsize="medium")
        panels[1].set_ylabel("steps that take it, %" if every > 1 else "runs that take it, %")
        panels[1].set_ylim(0, 101)
    for axes in panels:
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0, max(result.num_steps for result in results))
        axes.grid(alpha=0.3)
    legend_below(figure, panels[0], note="band: 95 % confidence")
    write(figure, path, title or title_of(results))


def regret_curves(results: Sequence[Result], path: str | Path, *, title: str | None = None) -> None:
    """Draw the cumulative regret over steps: on linear axes, against ln t, and on logarithmic axes.

    With it Lai and Robbins' C ln t, where the arms' values are given: in the long run the regret of
    an agent that is good everywhere grows no slower than that. It is asymptotic, good agents lie
    below it for a long time; what can be compared is the slope against ln t.

    Args:
        results: at least one.
        path: where to.
        title: above all.

    Raises:
        ConfigError: there is no result, none knows its regret, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = labels_of(results)
    check_regret(results)
    figure = new_figure(15, 5.2)
    panels = figure.subplots(1, 3)
    last = max(result.num_steps for result in results)
    first = min(int(result.step[0]) for result in results)
    constant = lai_robbins(results[0].environment) if have_one_environment(results) else None
    for axes in panels:
        for color, label, result in zip(colors_for(len(results)), labels, results, strict=True):
            draw_band(axes, result.step, result.regret, result.regret_se, color, label)
        if constant is not None:
            steps = np.geomspace(1, last, 400)
            axes.plot(
                steps,
                constant * np.log(steps),
                color="black",
                linestyle="--",
                linewidth=1.2,
                label=f"Lai–Robbins' {constant:.3g} ln t (asymptotic)",
            )
        axes.set_xlabel("steps")
        axes.set_ylabel("cumulative regret, units of reward")
        axes.grid(alpha=0.3)
    linear, half, logarithmic = panels
    linear.set_title("linear axes: growth as t is straight", fontsize="medium")
    half.set_title("logarithmic steps: growth as ln t is straight", fontsize="medium")
    logarithmic.set_title("logarithmic axes: powers of t are straight", fontsize="medium")
    linear.set_xlim(0, last)
    linear.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (half, logarithmic):
        axes.set_xscale("log")
        axes.set_xlim(first, max(last, first + 1))
        axes.set_xlabel("steps (logarithmic axis)")
    regrets = np.concatenate([result.regret for result in results])
    if (regrets >= 0).all():  # against the best arm in hindsight it can be negative
        for axes in (linear, half):
            axes.set_ylim(bottom=0)
    logarithmic.set_yscale("log")
    if (regrets > 0).any():  # C ln t begins at 0, which is infinitely far below
        logarithmic.set_ylim(bottom=regrets[regrets > 0].min() / 1.5)
    legend_below(figure, linear, note="band: 95 % confidence")
    write(figure, path, title or title_of(results))
