"""The figures of Sutton & Barto's chapter 2, computed and drawn.

A figure's settings are played in one comparison, on the same random numbers: what is drawn once for
all of them is most of the work, and differences between them are differences between agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits import pictures
from hotloop.bandits.agents import UCB
from hotloop.bandits.book import Plan, Setting, plan_of
from hotloop.bandits.environments import Gaussian
from hotloop.bandits.results import Comparison, Estimate, Result

if TYPE_CHECKING:
    from hotloop.bandits.games import Progress


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a figure's table.

    Attributes:
        label: the agent, or the arm of figure 2.1.
        reward: mean reward over the figure's window, or the arm's true value.
        optimal: share (0 … 1) of the window's steps that took the best arm; None in figure 2.1.
        regret: regret per step over the window; None in figure 2.1.
        reference: the setting, with the known values; None where there are none: in figure 2.1, and
            with another number of steps than the figure's own.
    """

    label: str
    reward: Estimate
    optimal: Estimate | None = None
    regret: float | None = None
    reference: Setting | None = None

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        about: dict[str, Any] = {"label": self.label, "reward": self.reward.to_dict()}
        if self.optimal is not None:
            about |= {"optimal": self.optimal.to_dict(), "regret_per_step": self.regret}
        if self.reference is not None:
            known = {name: getattr(self.reference, name) for name in ("reward", "optimal")}
            known["regret_per_step"] = self.reference.regret
            about["reference"] = {name: value for name, value in known.items() if value is not None}
        return about


@dataclass(frozen=True, kw_only=True)
class BookFigure:
    """A figure that was computed.

    Attributes:
        plan: its settings.
        num_runs, num_steps, seed: how it was computed.
        late_steps: the steps at the end that the rows are means over.
        rows: its table, in the order of the legend.
        comparison: the results; None for figure 2.1, in which nobody plays.
    """

    plan: Plan
    num_runs: int
    num_steps: int
    late_steps: int
    seed: int
    rows: tuple[Row, ...]
    comparison: Comparison | None = field(default=None, repr=False)

    @property
    def results(self) -> tuple[Result, ...]:
        """One for each setting."""
        return self.comparison.results if self.comparison else ()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the runs took."""
        return self.comparison.elapsed_s if self.comparison else 0.0

    @property
    def oracle(self) -> float:
        """What the best arm of every step gives, on average over the window: reward per step.

        From the first setting, whose reward and regret add up to it; the settings met the same true
        values, so it is the same for all of them but for the noise of rewards.
        """
        first = self.rows[0]
        return first.reward.mean + (first.regret or 0.0)

    def draw(self, path: str | Path) -> None:
        """Draw it as .png, .svg or .pdf.

        Raises:
            ConfigError: the path has another suffix.
            MissingExtraError: matplotlib is not installed.
            OutputError: the path can't be written.
        """
        plan, title = self.plan, self.heading
        if not plan.settings:
            means = [row.reward.mean for row in self.rows]
            pictures.reward_distributions(means, plan.environment.noise, path, title=title)
            return
        if not plan.is_study:
            pictures.learning_curves(self.results, path, title=title)
            return
        pairs = zip(plan.settings, self.rows, strict=True)
        pictures.parameter_study(
            {
                family: [(setting.parameter, row.reward) for setting, row in members]
                for family, members in groupby(pairs, key=lambda pair: pair[0].family)
            },
            path,
            title=title,
            x_label=plan.parameters,
            y_label=f"average reward per step, {self.window}",
            level=(f"the best arm of every step: {self.oracle:.2f}", self.oracle),
        )

    @property
    def heading(self) -> str:
        """What it shows, and in a second line how it was computed."""
        plan = self.plan
        runs = f"{self.num_runs:,} runs of {self.num_steps:,} steps, seed {self.seed}"
        if not plan.settings:
            runs = f"run 0 of seed {self.seed}"
        return f"{plan.kind} {plan.number}: {plan.title}\n{runs}"

    @property
    def window(self) -> str:
        """Which steps the rows are means over, in words."""
        if self.late_steps == self.num_steps:
            return f"all {self.num_steps:,} steps"
        return f"the last {self.late_steps:,} steps"

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold: the table, and each result's summary."""
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
        number: "2.1" to "2.6"; "2.11" for the parameter study of exercise 2.11.
        num_runs: runs of each setting; the book's 2000 by default. Figure 2.1 shows one task, for
            which neither this nor `num_steps` matters.
        num_steps: steps of each run; the book's by default.
        seed: of all random numbers.
        threads: how many work; as many as the process has cores by default.
        on_progress: called now and then with the runs' steps that are behind and that there are.

    Raises:
        UnknownNameError: there is no such figure.
        ConfigError: a number makes no sense.
    """
    plan = plan_of(number)
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
    about = partial(_row, plan, has_reference=num_steps == plan.num_steps)
    return BookFigure(
        plan=plan,
        num_runs=comparison.results[0].num_runs,
        num_steps=num_steps,
        late_steps=late_steps,
        seed=seed,
        rows=tuple(map(about, plan.settings, comparison.results)),
        comparison=comparison,
    )


def _row(plan: Plan, setting: Setting, result: Result, *, has_reference: bool) -> Row:
    is_known = (setting.reward, setting.optimal, setting.regret) != (None, None, None)
    return Row(
        label=plan.label(setting),
        reward=result.late_reward,
        optimal=result.late_optimal,
        regret=_late_regret(result),
        reference=setting if has_reference and is_known else None,
    )


def _late_regret(result: Result) -> float:
    """Regret per step over the last `late_steps`; linear between a curve's points."""
    start = result.num_steps - result.late_steps
    steps, regret = np.append(0, result.step), np.append(0.0, result.regret)
    return float(regret[-1] - np.interp(start, steps, regret)) / result.late_steps


def _testbed_task(plan: Plan, seed: int) -> BookFigure:
    """The true values of run 0: what trying every arm once gives where there is no noise."""
    from hotloop.bandits.running import run

    environment = plan.environment
    num_arms = environment.num_arms
    silent = Gaussian(
        num_arms=num_arms, mean=environment.mean, spread=environment.spread, noise=0.0
    )
    result = run(
        UCB(), silent, num_runs=1, num_steps=num_arms, seed=seed, threads=1, arm_shares=True
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
            Row(label=f"arm {arm}", reward=Estimate(float(mean), 0.0))
            for arm, mean in enumerate(means)
        ),
    )
