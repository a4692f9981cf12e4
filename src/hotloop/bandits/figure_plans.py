"""Settings of the figures of Sutton & Barto's chapter 2, "Multi-armed bandits" (2nd edition, 2018).

They include reference values from an independent computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hotloop.bandits.agents import UCB, Agent, EpsilonGreedy, Gradient, Optimistic
from hotloop.bandits.environments import Environment, GaussianRewards, RandomWalk
from hotloop.bandits.plots import power_of_two_text
from hotloop.errors import UnknownNameError, nearest


@dataclass(frozen=True, kw_only=True)
class FigureSetting:
    """One agent of a figure.

    Attributes:
        agent: the agent.
        family: name of its line in a parameter study, else empty.
        parameter: its position on that line.
        reward, optimal, regret: references from an independent computation in float64 with random
            ties, for the figure's default number of steps: mean reward over the figure's window,
            share (0 … 1) of optimal actions, regret per step. None if it was not computed.
    """

    agent: Agent
    family: str = ""
    parameter: float = 0.0
    reward: float | None = None
    optimal: float | None = None
    regret: float | None = None


@dataclass(frozen=True, kw_only=True)
class FigurePlan:
    """The settings of one figure.

    Attributes:
        number: number in the book.
        title: title in plots and tables.
        kind: "Figure" or "Exercise".
        environment: environment of all its agents.
        settings: its agents, empty for figure 2.1.
        num_runs, num_steps: default sizes.
        window: share of the steps, at the end, that measures average over.
        reference: how the reference values were computed.
        parameter_label: label of the horizontal axis of a parameter study, else empty.
    """

    number: str
    title: str
    kind: str = "Figure"
    environment: Environment
    settings: tuple[FigureSetting, ...] = ()
    num_runs: int = 2000
    num_steps: int = 1000
    window: float = 0.1
    reference: str = ""
    parameter_label: str = ""

    def label(self, setting: FigureSetting) -> str:
        """Return the label of a setting in the table."""
        if not self.is_study:
            return setting.agent.label
        return f"{setting.family} = {power_of_two_text(setting.parameter)}"

    @property
    def is_study(self) -> bool:
        """Whether the horizontal axis is a parameter, and not steps."""
        return bool(self.parameter_label)

    def late_steps(self, num_steps: int) -> int:
        """Return the number of last steps that measures average over."""
        return max(1, round(num_steps * self.window))


def _study_line(
    family: str,
    make_agent: Callable[[float], Agent],
    powers: Iterable[int],
    *,
    reward: Iterable[float] = (),
    regret: Mapping[int, float] | None = None,
) -> list[FigureSetting]:
    """Return a line of a parameter study: agents at powers of two, with their references."""
    powers = list(powers)
    rewards = list(reward) or [None] * len(powers)
    return [
        FigureSetting(
            agent=make_agent(2.0**power),
            family=family,
            parameter=2.0**power,
            reward=known_reward,
            regret=(regret or {}).get(power),
        )
        for power, known_reward in zip(powers, rewards, strict=True)
    ]


_GREEDY_10 = FigureSetting(agent=EpsilonGreedy(epsilon=0.1), reward=1.368, optimal=0.798)
_CURVES_REFERENCE = "in float64 over 200,000 runs"

FIGURES: dict[str, FigurePlan] = {
    plan.number: plan
    for plan in (
        FigurePlan(
            number="2.1",
            title="the reward distributions of one task of the 10-armed testbed",
            environment=GaussianRewards(),
            num_runs=1,
        ),
        FigurePlan(
            number="2.2",
            title="ε-greedy methods on the 10-armed testbed, sample averages",
            environment=GaussianRewards(),
            settings=(
                FigureSetting(agent=EpsilonGreedy(epsilon=0.0), reward=1.033, optimal=0.358),
                FigureSetting(agent=EpsilonGreedy(epsilon=0.01), reward=1.312, optimal=0.594),
                _GREEDY_10,
            ),
            reference=_CURVES_REFERENCE,
        ),
        FigurePlan(
            number="2.3",
            title="optimistic initial values on the 10-armed testbed",
            environment=GaussianRewards(),
            settings=(
                FigureSetting(agent=Optimistic(initial_value=5.0), reward=1.501, optimal=0.857),
                FigureSetting(
                    agent=EpsilonGreedy(epsilon=0.1, step_size=0.1), reward=1.351, optimal=0.755
                ),
            ),
            reference=_CURVES_REFERENCE,
        ),
        FigurePlan(
            number="2.4",
            title="upper confidence bounds on the 10-armed testbed",
            environment=GaussianRewards(),
            settings=(
                FigureSetting(agent=UCB(c=2.0), reward=1.488, optimal=0.854),
                # Not in the book's figure, but the subject of its exercise 2.8.
                FigureSetting(agent=UCB(c=1.0), reward=1.525, optimal=0.924),
                _GREEDY_10,
            ),
            reference=_CURVES_REFERENCE,
        ),
        FigurePlan(
            number="2.5",
            title="the gradient bandit with and without a baseline, true values N(4, 1)",
            environment=GaussianRewards(mean=4.0),
            settings=tuple(
                FigureSetting(
                    agent=Gradient(step_size=step_size, baseline=baseline),
                    reward=reward,
                    optimal=optimal,
                )
                for step_size, baseline, reward, optimal in (
                    (0.1, True, 5.501, 0.847),
                    (0.4, True, 5.435, 0.714),
                    (0.1, False, 5.207, 0.488),
                    (0.4, False, 4.800, 0.279),
                )
            ),
            reference=_CURVES_REFERENCE,
        ),
        FigurePlan(
            number="2.6",
            title="a parameter study on the 10-armed testbed",
            environment=GaussianRewards(),
            settings=(
                *_study_line(
                    "ε-greedy: ε",
                    lambda epsilon: EpsilonGreedy(epsilon=epsilon),
                    range(-7, -1),
                    reward=(1.171, 1.243, 1.306, 1.329, 1.281, 1.118),
                ),
                *_study_line(
                    "gradient bandit: α",
                    lambda step_size: Gradient(step_size=step_size),
                    range(-5, 3),
                    reward=(1.101, 1.287, 1.378, 1.400, 1.356, 1.241, 1.051, 0.825),
                ),
                *_study_line(
                    "UCB: c",
                    lambda c: UCB(c=c),
                    range(-4, 3),
                    reward=(1.419, 1.431, 1.452, 1.481, 1.480, 1.391, 1.167),
                ),
                *_study_line(
                    "greedy with optimistic start, α = 0.1: Q₁",
                    lambda value: Optimistic(initial_value=value),
                    range(-2, 3),
                    reward=(1.322, 1.398, 1.455, 1.413, 1.327),
                ),
            ),
            window=1.0,
            reference="in float64 over 50,000 runs",
            parameter_label="ε; α, per unit of reward; c and Q₁, units of reward",
        ),
        # The book does not fix the parameters. True values drift apart by about 3 in 100,000 steps.
        # So UCB and optimism need larger parameters than in figure 2.6, and random exploration
        # smaller ones.
        FigurePlan(
            number="2.11",
            kind="Exercise",
            title="a parameter study with true values that walk at random",
            environment=RandomWalk(),
            settings=(
                *_study_line(
                    "ε-greedy, α = 0.1: ε",
                    lambda epsilon: EpsilonGreedy(epsilon=epsilon, step_size=0.1),
                    range(-10, -2),
                    regret={-9: 0.232, -7: 0.077, -5: 0.190, -3: 0.748},
                ),
                *_study_line(
                    "ε-greedy, sample averages: ε",
                    lambda epsilon: EpsilonGreedy(epsilon=epsilon),
                    range(-7, -1),
                    regret={-5: 1.37},
                ),
                *_study_line(
                    "gradient bandit: α",
                    lambda step_size: Gradient(step_size=step_size),
                    range(-7, -2),
                    regret={-3: 2.42},
                ),
                *_study_line("UCB: c", lambda c: UCB(c=c), range(3, 9), regret={6: 0.74}),
                *_study_line(
                    "greedy with optimistic start, α = 0.1: Q₁",
                    lambda value: Optimistic(initial_value=value),
                    range(5),
                    regret={2: 1.62},
                ),
            ),
            num_steps=200_000,
            window=0.5,
            reference="in float64 over 200 runs",
            parameter_label="ε; α, per unit of reward; c and Q₁, units of reward",
        ),
    )
}


def get_figure_plan(number: str | float) -> FigurePlan:
    """Return the settings of a figure.

    Raises:
        UnknownNameError: There is no such figure.
    """
    number = str(number)
    if number not in FIGURES:
        message = f"expected a figure ({', '.join(FIGURES)}), got '{number}'"
        raise UnknownNameError(message + nearest(number, FIGURES))
    return FIGURES[number]
