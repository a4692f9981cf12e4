"""Curves over steps: reward, optimal actions, regret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotloop.bandits.bounds import lai_robbins
from hotloop.bandits.plots.canvas import (
    add_legend,
    check_regret,
    default_title,
    draw_band,
    new_figure,
    pick_colors,
    result_labels,
    save_figure,
    share_environment,
)
from hotloop.bandits.results import BanditResult
from hotloop.base.figures import check_plot_path


def learning_curves(
    results: Sequence[BanditResult], path: str | Path, *, title: str | None = None
) -> None:
    """Draw the average reward and the share of optimal actions over steps.

    Without optimal actions (a user's environment without `mean`), draw only the reward.
    """
    path = check_plot_path(path)
    labels = result_labels(results)
    has_optimal = any(np.isfinite(result.optimal).any() for result in results)
    figure = new_figure(8, 7.5 if has_optimal else 4.5)
    panels = figure.subplots(2 if has_optimal else 1, sharex=True, squeeze=False)[:, 0]
    interval = max(result.steps_per_point for result in results)
    smoothed = f" (mean of {interval:,} steps a point)" if interval > 1 else ""
    for color, label, result in zip(pick_colors(len(results)), labels, results, strict=True):
        draw_band(panels[0], result.step, result.reward, result.reward_se, color, label)
        if has_optimal:
            percent = 100 * result.optimal, 100 * result.optimal_se
            draw_band(panels[1], result.step, *percent, color, label)
    panels[0].set_title(f"average reward{smoothed}", fontsize="medium")
    panels[0].set_ylabel("reward per step")
    if has_optimal:
        panels[1].set_title(f"optimal action{smoothed}", fontsize="medium")
        panels[1].set_ylabel("steps choosing it, %" if interval > 1 else "runs choosing it, %")
        panels[1].set_ylim(0, 101)
    for axes in panels:
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0, max(result.num_steps for result in results))
        axes.grid(alpha=0.3)
    add_legend(figure, panels[0], note="band: 95 % confidence")
    save_figure(figure, path, title or default_title(results))


def regret_curves(
    results: Sequence[BanditResult], path: str | Path, *, title: str | None = None
) -> None:
    """Draw the cumulative regret over steps: on linear axes, against ln t, and on logarithmic axes.

    If the arms' values are fixed, Lai and Robbins' C ln t is drawn too. In the long run the regret
    of an agent that is good in all such environments grows no slower. This bound is asymptotic, and
    good agents stay below it for a long time. Compare the slopes against ln t.
    """
    path = check_plot_path(path)
    labels = result_labels(results)
    check_regret(results)
    # Draw the curves in three panels.
    figure = new_figure(15, 5.2)
    panels = figure.subplots(1, 3)
    last = max(result.num_steps for result in results)
    first = min(int(result.step[0]) for result in results)
    constant = lai_robbins(results[0].environment) if share_environment(results) else None
    for axes in panels:
        for color, label, result in zip(pick_colors(len(results)), labels, results, strict=True):
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
    # Set the scales and limits of the axes.
    linear, semilog, logarithmic = panels
    linear.set_title("linear axes: growth as t is straight", fontsize="medium")
    semilog.set_title("logarithmic steps: growth as ln t is straight", fontsize="medium")
    logarithmic.set_title("logarithmic axes: powers of t are straight", fontsize="medium")
    linear.set_xlim(0, last)
    linear.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (semilog, logarithmic):
        axes.set_xscale("log")
        axes.set_xlim(first, max(last, first + 1))
        axes.set_xlabel("steps (logarithmic axis)")
    regrets = np.concatenate([result.regret for result in results])
    if (regrets >= 0).all():  # regret against the best arm in hindsight can be negative
        for axes in (linear, semilog):
            axes.set_ylim(bottom=0)
    logarithmic.set_yscale("log")
    if (regrets > 0).any():  # C ln t starts at 0, which a logarithmic axis can't show
        logarithmic.set_ylim(bottom=regrets[regrets > 0].min() / 1.5)
    add_legend(figure, linear, note="band: 95 % confidence")
    save_figure(figure, path, title or default_title(results))
