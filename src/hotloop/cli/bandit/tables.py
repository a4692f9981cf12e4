"""Tables, speeds and JSON that the commands print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotloop.base.rounding import format_mean, format_number
from hotloop.base.text_tables import print_columns

if TYPE_CHECKING:
    from hotloop.bandits.figures import BookFigure, FigureRow
    from hotloop.bandits.results import BanditComparison, BanditResult, MeanEstimate


def print_figure(figure: BookFigure) -> None:
    """Print a figure's heading and table, with references from an independent computation."""
    rows = figure.rows
    if figure.comparison is None:
        columns = [("arm", [row.label for row in rows])]
        columns.append(("true value", [f"{row.reward.mean:.3f}" for row in rows]))
    else:
        refs = [row.reference for row in rows]
        columns = [
            ("agent", [row.label for row in rows]),
            ("reward", [plus_minus(row.reward) for row in rows]),
            ("reference", [_or_blank("{:.3f}", ref and ref.reward) for ref in refs]),
            ("optimal", [plus_minus(row.optimal, percent=True) for row in rows]),
            (
                "reference",
                [_or_blank("{:.1f} %", ref and ref.optimal and 100 * ref.optimal) for ref in refs],
            ),
            ("regret", [_regret_text(row) for row in rows]),
            ("reference", [_or_blank("{:.3f}", ref and ref.regret) for ref in refs]),
        ]
    print(f"{figure.heading}\n")
    print_columns([(heading, cells) for heading, cells in columns if any(cells)])
    if figure.comparison is not None:
        print(
            f"\nReward and regret per step, over {figure.window_text}; ± standard error over runs."
        )
    if any(row.reference for row in rows):
        print(f"Reference: computed independently {figure.plan.reference}.")


def _regret_text(row: FigureRow) -> str:
    return "" if row.regret is None else format_number(row.regret, row.reward.se)


def _or_blank(style: str, value: float | None) -> str:
    return "" if value is None else style.format(value)


def print_result(result: BanditResult) -> None:
    """Print one agent's estimates, over all steps and over the last ones."""
    means, late = (
        [plus_minus(reward), plus_minus(optimal, percent=True), regret]
        for reward, optimal, regret in (
            (result.mean_reward, result.mean_optimal, plus_minus(result.final_regret)),
            (result.late_reward, result.late_optimal, ""),
        )
    )
    print(f"{_heading(result)}\n")
    print_columns(
        [
            ("", ["reward per step", "optimal action", "regret at the end"]),
            (f"all {result.num_steps:,} steps", means),
            (f"the last {result.late_steps:,}", late),
        ]
    )
    print("\n± standard error over runs")


def print_comparison(comparison: BanditComparison) -> None:
    """Print a table of agents with their differences to the first one."""
    results = comparison.results
    first = results[0]

    def differences(quantity: str) -> list[str]:
        numbers = range(1, len(results))
        return [
            "",
            *(plus_minus(comparison.difference(i, 0, quantity), sign=True) for i in numbers),
        ]

    print(f"{_heading(first, agent=False)}\n")
    print_columns(
        [
            ("agent", [result.agent.label for result in results]),
            ("reward", [plus_minus(result.late_reward) for result in results]),
            ("to the first", differences("late_reward")),
            ("optimal", [plus_minus(result.late_optimal, percent=True) for result in results]),
            ("final regret", [plus_minus(result.final_regret) for result in results]),
            ("to the first", differences("final_regret")),
        ]
    )
    print(
        f"\nReward per step and optimal actions over the last {first.late_steps:,} steps; "
        "± standard error over runs, of differences run by run."
    )


def _heading(result: BanditResult, *, agent: bool = True) -> str:
    prefix = f"{result.agent.label} · " if agent else ""
    environment = result.environment.label
    arms = "" if "arms" in environment else f", {result.environment.num_arms} arms"
    runs = f"{result.num_runs:,} runs of {result.num_steps:,} steps"
    return f"{prefix}{environment}{arms} · {runs} · seed {result.seed}"


def plus_minus(estimate: MeanEstimate | None, *, percent: bool = False, sign: bool = False) -> str:
    """Return an estimate rounded to two digits of its standard error: `1.368 ± 0.013`."""
    if estimate is None:
        return ""
    mean, se = (100 * value for value in estimate) if percent else estimate
    if math.isnan(mean):
        return "–"
    plus = "+" if sign else ""
    unit = " %" if percent else ""
    if not se > 0:  # there is a single run, or all runs are equal
        return format_number(mean, sign=plus) + unit
    return format_mean(mean, se, sign=plus, least=0) + unit


def print_speed(results: Sequence[BanditResult], elapsed_s: float) -> None:
    """Print the last line: run·steps and time."""
    first = results[0]
    run_steps = len(results) * first.num_runs * first.num_steps
    agents = f"{len(results)} agents × " if len(results) > 1 else ""
    print(
        f"{agents}{first.num_runs:,} runs × {first.num_steps:,} steps = {run_steps:,} run·steps "
        f"in {elapsed_s:,.3f} s: {elapsed_s * 1e9 / run_steps:,.1f} ns a run and step"
    )
