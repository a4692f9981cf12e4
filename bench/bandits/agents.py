"""hotloop's agents and user-defined agents, each with an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.bandits.plays import ARMS, EPSILON, Floats
from bench.measuring import import_library


class AgentCase(NamedTuple):
    """Settings of an agent in an environment. The first one is also measured alone."""

    label: str
    agents: Sequence[Any]
    environment: Any
    runs: int = 2000


def cases(num_steps: int) -> dict[str, AgentCase]:
    """Return the measured cases on ten arms, by name."""
    b: Any = import_library("hotloop.bandits")
    gaussian = b.GaussianRewards()
    coins = b.Bernoulli(means=tuple(0.05 + 0.1 * arm for arm in range(10)))
    matrix = b.Adversarial(rewards=np.random.default_rng(0).random((num_steps, ARMS)))
    linear = b.LinearContextual()

    def each(agent: Any, field: str, *values: float, **options: float) -> list[Any]:
        return [agent(**{field: value}, **options) for value in values]

    values_tried = (0.1, 0.01, 0.05, 0.2)
    greedy = each(b.EpsilonGreedy, "epsilon", *values_tried)
    tracking = each(b.EpsilonGreedy, "epsilon", *values_tried, step_size=0.1)
    thompson = each(b.GaussianThompson, "prior_std", 1.0, 0.5, 2.0, 4.0)
    return {
        "epsilon-greedy": AgentCase("ε-greedy", greedy, gaussian),
        "ucb": AgentCase("UCB", each(b.UCB, "c", 2.0, 0.5, 1.0, 4.0), gaussian),
        "gradient": AgentCase("gradient", each(b.Gradient, "step_size", *values_tried), gaussian),
        "random-walk": AgentCase("ε-greedy, α = 0.1", tracking, b.RandomWalk()),
        "abrupt-change": AgentCase("ε-greedy, α = 0.1", tracking, b.AbruptChange()),
        "optimistic": AgentCase(
            "optimistic start", each(b.Optimistic, "initial_value", 5.0, 1.0, 2.0, 4.0), gaussian
        ),
        "gaussian-thompson": AgentCase("Thompson, Gaussian", thompson, gaussian),
        "ucb1": AgentCase("UCB1", each(b.UCB1, "scale", 2**0.5, 0.5, 0.7, 1.0), coins),
        "moss": AgentCase("MOSS", [b.MOSS()], coins),
        "beta-thompson": AgentCase(
            "Thompson, Beta", each(b.BetaThompson, "prior_beta", 1.0, 2.0, 3.0, 4.0), coins, 512
        ),
        "kl-ucb": AgentCase("KL-UCB", each(b.KLUCB, "c", 0.0, 1.0, 2.0, 3.0), coins, 512),
        "exp3": AgentCase("EXP3", each(b.EXP3, "gamma", *values_tried), matrix),
        "lin-ucb": AgentCase("LinUCB", each(b.LinUCB, "alpha", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "lin-ts": AgentCase("LinTS", each(b.LinTS, "scale", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "jitted-agent": AgentCase(
            "ε-greedy as a user's jitted functions",
            [
                b.JittedAgent(
                    choose=_own_choose, update=_own_update, state_size=_own_size, params=(epsilon,)
                )
                for epsilon in values_tried
            ],
            gaussian,
        ),
        "plain-agent": AgentCase(
            "ε-greedy as a user's plain Python", [NumpyAgent(EPSILON)], gaussian
        ),
    }


# A user's ε-greedy. It takes the first of equal arms, since arms are exchangeable here.


def _own_size(num_arms: int) -> int:
    return 2 * num_arms


def _own_choose(state: Any, params: Any, step: int, uniform: Any) -> int:
    num_arms = len(state) // 2
    if uniform[0] < params[0]:
        return int(uniform[1] * num_arms)
    best = 0
    for arm in range(1, num_arms):
        if state[arm] > state[best]:
            best = arm
    return best


def _own_update(state: Any, params: Any, step: int, arm: int, reward: float) -> None:
    count = len(state) // 2 + arm
    state[count] += 1.0
    state[arm] += (reward - state[arm]) / state[count]


class NumpyAgent:
    """An equivalent ε-greedy agent in NumPy that steps all runs at once."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def start(self, num_runs: int, num_arms: int, rng: np.random.Generator) -> None:
        """Reset all estimates."""
        self.rng, self.every = rng, np.arange(num_runs)
        self.estimates = np.zeros((num_runs, num_arms))
        self.counts = np.zeros((num_runs, num_arms))

    def choose(self, step: int) -> npt.NDArray[np.int64]:
        """Return an arm for each run."""
        arm = self.estimates.argmax(axis=1)
        explores = np.flatnonzero(self.rng.random(len(arm)) < self.epsilon)
        arm[explores] = self.rng.integers(self.estimates.shape[1], size=len(explores))
        return arm

    def update(self, step: int, arm: npt.NDArray[np.int64], reward: Floats) -> None:
        """Update the sample averages."""
        self.counts[self.every, arm] += 1
        error = reward - self.estimates[self.every, arm]
        self.estimates[self.every, arm] += error / self.counts[self.every, arm]
