"""Exercises of Sutton & Barto's chapter 2 and Bernoulli regrets, compared with independent values.

The values come from float64 runs that share no code with hotloop. `error` is their standard error.
Tolerances are four standard errors of the difference.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotloop.bandits import (
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    Gradient,
    Optimistic,
    RandomWalk,
    run,
)
from tests.bandits.laws import assert_near

RUNS = 5_000

ROUNDING = 0.0003  # values have three digits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_size", "reward", "optimal"), [(None, 1.053, 0.452), (0.1, 1.315, 0.758)]
)
def test_exercise_2_5(step_size, reward, optimal):
    """The values are from 20,000 runs, four times ours, so their standard error is half of ours."""
    agent = EpsilonGreedy(epsilon=0.1, step_size=step_size)
    result = run(agent, RandomWalk(), num_runs=RUNS, num_steps=10_000, late_steps=1000)
    for estimate, value in ((result.late_reward, reward), (result.late_optimal, optimal)):
        assert_near(estimate, value, error=math.hypot(estimate.se / 2, ROUNDING))


NON_STATIONARY = {
    "2^-9": (EpsilonGreedy(epsilon=2.0**-9, step_size=0.1), 0.232),
    "2^-7": (EpsilonGreedy(epsilon=2.0**-7, step_size=0.1), 0.077),
    "2^-5": (EpsilonGreedy(epsilon=2.0**-5, step_size=0.1), 0.190),
    "2^-3": (EpsilonGreedy(epsilon=2.0**-3, step_size=0.1), 0.748),
    "averages": (EpsilonGreedy(epsilon=2.0**-5), 1.37),
    "ucb": (UCB(c=2.0**6), 0.74),
    "gradient": (Gradient(step_size=2.0**-3), 2.42),
    "optimistic": (Optimistic(initial_value=4.0, step_size=0.1), 1.62),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NON_STATIONARY)
def test_exercise_2_11(case):
    """Regret per step over the last 100,000 of 200,000. The values are from 200 runs.

    A run of half the length is the first half of the longer one, so their difference is the regret
    of the second half, run by run.
    """
    agent, value = NON_STATIONARY[case]
    num_runs = 256
    whole, half = (
        run(agent, RandomWalk(), num_runs=num_runs, num_steps=num_steps).final_regrets
        for num_steps in (200_000, 100_000)
    )
    late = (whole - half) / 100_000
    spread = late.std(ddof=1)
    digits = 0.003 if value > 1 else 0.0003
    assert_near(
        (late.mean(), spread / math.sqrt(num_runs)),
        value,
        error=math.hypot(spread / math.sqrt(200), digits),
    )


@pytest.mark.slow
def test_oracle_of_exercise_2_11():
    """An oracle gets 5.93 per step over the last 100,000 of 200,000 steps.

    An agent's reward and regret add up to that value, apart from the rewards' noise.
    """
    agent, num_runs = EpsilonGreedy(epsilon=2.0**-7, step_size=0.1), 512
    whole = run(agent, RandomWalk(), num_runs=num_runs, num_steps=200_000, late_steps=100_000)
    half = run(agent, RandomWalk(), num_runs=num_runs, num_steps=100_000)
    regret = (whole.final_regret.mean - half.final_regret.mean) / 100_000
    # E max of ten N(0, t walk²) is 1.53875 walk √t. Its mean over the second half is about 5.98.
    steps = np.arange(100_000, 200_000)
    exact = 1.53875 * 0.01 * np.sqrt(steps).mean()
    assert exact == pytest.approx(5.93, abs=0.06)
    oracle = whole.late_reward.mean + regret
    assert_near((oracle, whole.late_reward.se), exact)


# Regret at the horizon. The largest standard error is 1.1.
BERNOULLI = {
    "two": ((0.9, 0.8), 10_000, (86.9, 30.7, 15.5, 9.9, 29.4)),
    "ten low": (
        (0.1, 0.05, 0.05, 0.05, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01),
        20_000,
        (843.5, 392.7, 132.0, 91.2, 242.8),
    ),
    "nine": (tuple(np.arange(1, 10) / 10), 10_000, (330.2, 101.1, 59.9, 41.4, 87.0)),
}
INDICES = {
    "ucb1": UCB1(),
    "half": UCB1(scale=math.sqrt(0.5)),
    "kl-ucb": KLUCB(),
    "thompson": BetaThompson(),
    "moss": MOSS(),
}


@pytest.mark.slow
@pytest.mark.timeout(1500)  # up to 10⁸ steps of KL-UCB
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("instance", BERNOULLI)
def test_bernoulli_regrets(instance, index):
    means, num_steps, values = BERNOULLI[instance]
    environment = Bernoulli(means=means)
    result = run(INDICES[index], environment, num_runs=RUNS, num_steps=num_steps)
    assert_near(result.final_regret, values[list(INDICES).index(index)], error=1.1)
