"""Every agent of hotloop's, and a user's own, each in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.bandits.plays import ARMS, EPSILON, Floats
from bench.measuring import imported


class Case(NamedTuple):
    """Settings of one agent in an environment; alone it is the first of them."""

    about: str
    agents: Sequence[Any]
    environment: Any
    runs: int = 2000


def cases(num_steps: int) -> dict[str, Case]:
    """Every agent of hotloop's, and some environments, on ten arms."""
    b: Any = imported("hotloop.bandits")
    gaussian = b.Gaussian()
    coins = b.Bernoulli(means=tuple(0.05 + 0.1 * arm for arm in range(10)))
    matrix = b.Adversarial(rewards=np.random.default_rng(0).random((num_steps, ARMS)))
    linear = b.LinearContextual()

    def each(agent: Any, field: str, *values: float, **others: float) -> list[Any]:
        return [agent(**{field: value}, **others) for value in values]

    some = (0.1, 0.01, 0.05, 0.2)
    greedy = each(b.EpsilonGreedy, "epsilon", *some)
    tracking = each(b.EpsilonGreedy, "epsilon", *some, step_size=0.1)
    thompson = each(b.GaussianThompson, "prior_std", 1.0, 0.5, 2.0, 4.0)
    return {
        "epsilon-greedy": Case("ε-greedy", greedy, gaussian),
        "ucb": Case("UCB", each(b.UCB, "c", 2.0, 0.5, 1.0, 4.0), gaussian),
        "gradient": Case("gradient", each(b.Gradient, "step_size", *some), gaussian),
        "random-walk": Case("ε-greedy, α = 0.1", tracking, b.RandomWalk()),
        "abrupt-change": Case("ε-greedy, α = 0.1", tracking, b.AbruptChange()),
        "optimistic": Case(
            "optimistic start", each(b.Optimistic, "initial_value", 5.0, 1.0, 2.0, 4.0), gaussian
        ),
        "gaussian-thompson": Case("Thompson, Gaussian", thompson, gaussian),
        "ucb1": Case("UCB1", each(b.UCB1, "scale", 2**0.5, 0.5, 0.7, 1.0), coins),
        "moss": Case("MOSS", [b.MOSS()], coins),
        "beta-thompson": Case(
            "Thompson, Beta", each(b.BetaThompson, "prior_beta", 1.0, 2.0, 3.0, 4.0), coins, 512
        ),
        "kl-ucb": Case("KL-UCB", each(b.KLUCB, "c", 0.0, 1.0, 2.0, 3.0), coins, 512),
        "exp3": Case("EXP3", each(b.EXP3, "gamma", *some), matrix),
        "lin-ucb": Case("LinUCB", each(b.LinUCB, "alpha", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "lin-ts": Case("LinTS", each(b.LinTS, "scale", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "jitted-agent": Case(
            "ε-greedy as a user's jitted functions",
            [
                b.JittedAgent(
                    choose=_own_choose, update=_own_update, state_size=_own_size, params=(epsilon,)
                )
                for epsilon in some
            ],
            gaussian,
        ),
        "plain-agent": Case("ε-greedy as a user's plain Python", [OwnAgent(EPSILON)], gaussian),
    }


# A user's ε-greedy. Of equals the first: no arm of these differs from another beforehand.


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


class OwnAgent:
    """The same in NumPy, a step of all runs at once."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def start(self, num_runs: int, num_arms: int, rng: np.random.Generator) -> None:
        """Begin anew."""
        self.rng, self.every = rng, np.arange(num_runs)
        self.estimates = np.zeros((num_runs, num_arms))
        self.counts = np.zeros((num_runs, num_arms))

    def choose(self, step: int) -> npt.NDArray[np.int64]:
        """An arm for each run."""
        arm = self.estimates.argmax(axis=1)
        explores = np.flatnonzero(self.rng.random(len(arm)) < self.epsilon)
        arm[explores] = self.rng.integers(self.estimates.shape[1], size=len(explores))
        return arm

    def update(self, step: int, arm: npt.NDArray[np.int64], reward: Floats) -> None:
        """Sample averages."""
        self.counts[self.every, arm] += 1
        error = reward - self.estimates[self.every, arm]
        self.estimates[self.every, arm] += error / self.counts[self.every, arm]
