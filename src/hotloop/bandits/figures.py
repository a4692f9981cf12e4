"""Computation and plots of the figures of Sutton & Barto's chapter 2.

All agents of a figure play in one comparison on the same random numbers. Drawing them is most of
the work and happens once. So differences between curves are differences between agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits import plots
from hotloop.bandits.agents import UCB
from hotloop.bandits.environments import GaussianRewards
from hotloop.bandits.figure_plans import FigurePlan, FigureSetting, get_figure_plan
from hotloop.bandits.results import BanditComparison, BanditResult, MeanEstimate
from hotloop.base.rounding import format_number

if TYPE_CHECKING:
    from hotloop.bandits.play_threads import Progress


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """A row of a figure's table.

    Attributes:
        label: label of the agent, or of the arm in figure 2.1.
        reward: mean reward over the figure's window, or the arm's true value.
        optimal: share (0 … 1) of the window's steps with the best arm. None in figure 2.1.
        regret: regret per step over the window. None in figure 2.1.
        reference: the setting with its reference values. None in figure 2.1, or if the number of
            steps is not the figure's default.
    """

    label: str
    reward: MeanEstimate
    optimal: MeanEstimate | None = None
    regret: float | None = None
    reference: FigureSetting | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        row: dict[str, Any] = {"label": self.label, "reward": self.reward.to_dict()}
        if self.optimal is not None:
            row |= {"optimal": self.optimal.to_dict(), "regret_per_step": self.regret}
        if self.reference is not None:
            values = {name: getattr(self.reference, name) for name in ("reward", "optimal")}
            values["regret_per_step"] = self.reference.regret
            row["reference"] = {name: value for name, value in values.items() if value is not None}
        return row


@dataclass(frozen=True, kw_only=True)
class BookFigure:
    """A computed figure.

    Attributes:
        plan: settings of the figure.
        num_runs, num_steps, seed: sizes and seed of the computation.
        late_steps: number of last steps that the rows average over.
        rows: rows of the table, in the order of the legend.
        comparison: the results. None for figure 2.1, which has no agents.
    """

    plan: FigurePlan
    num_runs: int
    num_steps: int
    late_steps: int
    seed: int
    rows: tuple[FigureRow, ...]
    comparison: BanditComparison | None = field(default=None, repr=False)

    @property
    def results(self) -> tuple[BanditResult, ...]:
        """One result per setting."""
        return self.comparison.results if self.comparison else ()

    @property
    def elapsed_s(self) -> float:
        """Duration of the runs in seconds."""
        return self.comparison.elapsed_s if self.comparison else 0.0

    @property
    def best_arm_reward(self) -> float:
        """Mean reward per step of the best arm of every step, over the window.

        It is the sum of reward and regret of the first setting. All settings have the same true
        values, so for the others this sum differs only by the noise of rewards.
        """
        first = self.rows[0]
        return first.reward.mean + (first.regret or 0.0)

    def draw(self, path: str | Path) -> None:
        """Draw the figure as .png, .svg or .pdf.

        Raises:
            ConfigError: The path has another suffix.
            MissingExtraError: matplotlib is not installed.
            OutputError: The path can't be written.
        """
        plan, title = self.plan, self.heading
        if not plan.settings:
            means = [row.reward.mean for row in self.rows]
            plots.reward_distributions(means, plan.environment.noise, path, title=title)
            return
        if not plan.is_study:
            plots.learning_curves(self.results, path, title=title)
            return
        pairs = zip(plan.settings, self.rows, strict=True)
        plots.parameter_study(
            {
                family: [(setting.parameter, row.reward) for setting, row in members]
                for family, members in groupby(pairs, key=lambda pair: pair[0].family)
            },
            path,
            title=title,
            x_label=plan.parameter_label,
            y_label=f"average reward per step, {self.window_text}",
            level=(
                f"the best arm of every step: {format_number(self.best_arm_reward)}",
                self.best_arm_reward,
            ),
        )

    @property
    def heading(self) -> str:
        """The title, with sizes and seed in a second line."""
        plan = self.plan
        runs = f"{self.num_runs:,} runs of {self.num_steps:,} steps, seed {self.seed}"
        if not plan.settings:
            runs = f"run 0 of seed {self.seed}"
        return f"{plan.kind} {plan.number}: {plan.title}\n{runs}"

    @property
    def window_text(self) -> str:
        """The steps that the rows average over, as text."""
        if self.late_steps == self.num_steps:
            return f"all {self.num_steps:,} steps"
        return f"the last {self.late_steps:,} steps"

    def to_dict(self) -> dict[str, Any]:
        """Return the table and a summary of each result as JSON values."""
        return {
            "figure": self.plan.number,
            "title": self.plan.title,
            "environment": self.plan.environment.describe(),
            "num_runs": self.num_runs,
            "num_steps": self.num_steps,
            "late_steps": self.late_steps,
            "seed": self.seed,
            "elapsed_s": self.elapsed_s,
            "rows": [row.to_dict() for row in self.rows],
            "results": [result.to_dict() for result in self.results],
        }


def book_figure(
    number: str | float,
    *,
    num_runs: int | None = None,
    num_steps: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> BookFigure:
    """Compute a figure of the book.

    Args:
        number: "2.1" to "2.6", or "2.11" for the parameter study of exercise 2.11.
        num_runs: runs of each setting. Default: the book's 2000. This and `num_steps` have no
            effect on figure 2.1, which shows one task.
        num_steps: steps of each run. Default: the book's.
        seed: seed of all random numbers.
        threads: number of threads. Default: the process's number of cores.
        on_progress: function called with the finished and the total number of runs × steps.

    Raises:
        UnknownNameError: There is no such figure.
        ConfigError: A number is invalid.
    """
    plan = get_figure_plan(number)
    if not plan.settings:
        return _testbed_task(plan, seed)
    from hotloop.bandits.running import compare

    num_steps = plan.num_steps if num_steps is None else num_steps
    late_steps = plan.late_steps(num_steps)
    comparison = compare(
        [setting.agent for setting in plan.settings],
        plan.environment,
        num_runs=plan.num_runs if num_runs is None else num_runs,
        num_steps=num_steps,
        seed=seed,
        threads=threads,
        late_steps=late_steps,
        on_progress=on_progress,
    )
    make_row = partial(_make_row, plan, has_reference=num_steps == plan.num_steps)
    return BookFigure(
        plan=plan,
        num_runs=comparison.results[0].num_runs,
        num_steps=num_steps,
        late_steps=late_steps,
        seed=seed,
        rows=tuple(map(make_row, plan.settings, comparison.results)),
        comparison=comparison,
    )


def _make_row(
    plan: FigurePlan, setting: FigureSetting, result: BanditResult, *, has_reference: bool
) -> FigureRow:
    has_values = (setting.reward, setting.optimal, setting.regret) != (None, None, None)
    return FigureRow(
        label=plan.label(setting),
        reward=result.late_reward,
        optimal=result.late_optimal,
        regret=_late_regret(result),
        reference=setting if has_reference and has_values else None,
    )


def _late_regret(result: BanditResult) -> float:
    """Return the regret per step over the last `late_steps`, interpolated between points."""
    start = result.num_steps - result.late_steps
    steps, regret = np.append(0, result.step), np.append(0.0, result.regret)
    return float(regret[-1] - np.interp(start, steps, regret)) / result.late_steps


def _testbed_task(plan: FigurePlan, seed: int) -> BookFigure:
    """Return figure 2.1: run 0 without noise plays every arm once, which gives its true values."""
    from hotloop.bandits.running import run

    environment = plan.environment
    num_arms = environment.num_arms
    noiseless = GaussianRewards(
        num_arms=num_arms, mean=environment.mean, spread=environment.spread, noise=0.0
    )
    result = run(
        UCB(), noiseless, num_runs=1, num_steps=num_arms, seed=seed, threads=1, arm_shares=True
    )
    assert result.arm_share is not None
    means = result.arm_share.T @ result.reward
    return BookFigure(
        plan=plan,
        num_runs=1,
        num_steps=num_arms,
        late_steps=num_arms,
        seed=seed,
        rows=tuple(
            FigureRow(label=f"arm {arm}", reward=MeanEstimate(float(mean), 0.0))
            for arm, mean in enumerate(means)
        ),
    )
