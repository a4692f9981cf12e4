"""Agents and environments in cases small enough for hand-computed results."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotloop.bandits import (
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    Adversarial,
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    GaussianRewards,
    GaussianThompson,
    Gradient,
    LinearContextual,
    LinTS,
    LinUCB,
    Optimistic,
    run,
)
from tests.bandits.laws import (
    BEST_OF_TEN,
    assert_law,
    assert_near,
    assert_share,
    chosen_arms,
    single_run,
)


def logistic(x):
    return 1 / (1 + math.exp(-x))


def normal_cdf(x):
    return math.erfc(-x / math.sqrt(2)) / 2


# Ties.

ALL_AGENTS = {
    "epsilon": EpsilonGreedy(epsilon=0.3),
    "greedy": EpsilonGreedy(epsilon=0.0),
    "optimistic": Optimistic(),
    "ucb": UCB(),
    "ucb1": UCB1(),
    "gradient": Gradient(),
    "gaussian thompson": GaussianThompson(),
    "beta thompson": BetaThompson(),
    "kl-ucb": KLUCB(),
    "exp3": EXP3(),
    "moss": MOSS(),
}
SEVEN = Bernoulli(means=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7))


@pytest.mark.parametrize("agent", ALL_AGENTS.values(), ids=ALL_AGENTS)
def test_first_arm_is_uniform(agent):
    result = run(agent, SEVEN, num_runs=8192, num_steps=1, steps_per_point=1, arm_shares=True)
    assert_law(result.arm_share[0] * 8192, 1 / 7)


@pytest.mark.parametrize("agent", [LinUCB(), LinTS()], ids=["lin-ucb", "lin-ts"])
def test_first_arm_is_uniform_in_a_context(agent):
    environment = LinearContextual(num_arms=7)
    result = run(agent, environment, num_runs=8192, num_steps=1, arm_shares=True)
    assert_law(result.arm_share[0] * 8192, 1 / 7)


INDEX_AGENTS = {name: ALL_AGENTS[name] for name in ("ucb", "ucb1", "kl-ucb", "moss")}


@pytest.mark.parametrize("agent", INDEX_AGENTS.values(), ids=INDEX_AGENTS)
def test_all_arms_are_tried_first_in_random_order(agent):
    means = (0.1, 0.2, 0.4, 0.8)
    arms = chosen_arms(agent, Bernoulli(means=means), num_steps=4, num_runs=8192)
    np.testing.assert_array_equal(np.sort(arms, axis=1), np.tile(np.arange(4), (8192, 1)))
    orders, counts = np.unique(arms, axis=0, return_counts=True)
    assert len(orders) == 24
    assert_law(counts, 1 / 24)


@pytest.mark.parametrize("num_arms", [10, 37])
@pytest.mark.parametrize("agent", INDEX_AGENTS.values(), ids=INDEX_AGENTS)
def test_all_arms_are_tried_first(agent, num_arms):
    environment = Bernoulli(means=np.linspace(0.01, 0.9, num_arms))
    result = run(
        agent, environment, num_runs=300, num_steps=num_arms, steps_per_point=num_arms,
        arm_shares=True,
    )  # fmt: skip
    np.testing.assert_allclose(result.arm_share, np.full((1, num_arms), 1 / num_arms))


def test_ties_among_some_arms_are_broken_evenly():
    """Three of ten arms are best and are found. Each of them is then taken equally often.

    Exploring and breaking ties must be independent.
    """
    means = (1.0, 1.0, 1.0) + (0.0,) * 7
    for epsilon in (0.1, 0.5, 0.8):
        result = run(
            EpsilonGreedy(epsilon=epsilon, initial_value=10.0),
            GaussianRewards(means=means, noise=0.0),
            num_runs=2048, num_steps=400, steps_per_point=200, arm_shares=True,
        )  # fmt: skip
        counts = result.arm_share[-1] * 2048 * 200
        assert_even(counts[:3])
        assert_law(counts, np.array(means) * (1 - epsilon) / 3 + epsilon / 10)


def assert_even(counts):
    assert_law(counts, 1 / len(counts))


# ε-greedy and estimates.


def test_epsilon_decays():
    result = run(
        EpsilonGreedy(epsilon=0.8, epsilon_decay=0.1, initial_value=10.0),
        GaussianRewards(means=(0.0, 1.0), noise=0.0),
        num_runs=40_000, num_steps=300, steps_per_point=1,
    )  # fmt: skip
    epsilon = 0.8 / (1 + 0.1 * np.arange(300))
    law = 1 - epsilon / 2
    error = np.sqrt(law * (1 - law) / 40_000)
    settled = slice(60, None)
    assert (np.abs(result.optimal - law)[settled] < 5 * error[settled]).all()


@pytest.mark.parametrize(
    ("agent", "num_stays"),
    [
        (EpsilonGreedy(epsilon=0.0, initial_value=0.3), 4),
        (EpsilonGreedy(epsilon=0.0, initial_value=0.3, step_size=0.5), 3),
        (EpsilonGreedy(epsilon=0.0, initial_value=0.3, step_size=0.2), 3),
        (Optimistic(initial_value=0.3, step_size=1.0), 2),
        (Optimistic(initial_value=0.3, step_size=None), 4),
    ],
    ids=["averages", "half", "fifth", "all", "optimistic averages"],
)
def test_estimates_match_hand_computed_values(agent, num_stays):
    """The first arm gives 1 and then nothing. It is left when its estimate falls below 0.3.

    Averages are 1, 1/2, 1/3, 1/4. With α = 0.5: 0.65, 0.325, 0.1625. With 0.2: 0.44, 0.352, 0.2816.
    With 1: 1, 0.
    """
    rewards = np.zeros((8, 4))
    rewards[0] = 1.0
    for seed in range(8):
        arms, _ = single_run(agent, Adversarial(rewards=rewards), num_steps=8, seed=seed)
        assert (arms[:num_stays] == arms[0]).all()
        assert arms[num_stays] != arms[0]


# Draws from probabilities.


def test_gradient_by_hand():
    """Two arms give 1 and 0, without noise.

    The first reward is its own baseline, so it changes nothing. At step 2 the baseline is the first
    reward. Preferences move only if the other arm is taken now, by α/2 towards arm 0 and away from
    arm 1, and the chance of arm 0 is σ(α).
    """
    arms = chosen_arms(
        Gradient(step_size=2.0), GaussianRewards(means=(1.0, 0.0), noise=0.0), num_steps=3
    )
    assert_share(arms[:, 0] == 0, 0.5)
    for first in (0, 1):
        rows = arms[arms[:, 0] == first]
        assert_share(rows[:, 1] == 0, 0.5)
        assert_share(rows[rows[:, 1] == first][:, 2] == 0, 0.5)
        assert_share(rows[rows[:, 1] != first][:, 2] == 0, logistic(2.0))


def test_gradient_without_baseline_by_hand():
    """After arm 0 gave 1, preferences are ±α/2. After arm 1 gave 0, they are unchanged."""
    agent = Gradient(step_size=1.0, baseline=False)
    arms = chosen_arms(agent, GaussianRewards(means=(1.0, 0.0), noise=0.0), num_steps=3)
    assert_share(arms[arms[:, 0] == 0][:, 1] == 0, logistic(1.0))
    assert_share(arms[arms[:, 0] == 1][:, 1] == 0, 0.5)
    # Twice arm 0: then 0.5 + (1 − σ(1)) and its negative.
    twice = arms[(arms[:, 0] == 0) & (arms[:, 1] == 0)][:, 2]
    assert_share(twice == 0, logistic(2 * (0.5 + 1 - logistic(1.0))))


def test_gradient_of_three_arms():
    """After r = 1 with π = 1/3 each: H = (2/3, −1/3, −1/3) α."""
    agent = Gradient(step_size=1.5, baseline=False)
    arms = chosen_arms(agent, GaussianRewards(means=(1.0, 0.0, -1e-3), noise=0.0), num_steps=2)
    next_arms = arms[arms[:, 0] == 0][:, 1]
    weights = np.exp(1.5 * np.array([2 / 3, -1 / 3, -1 / 3]))
    assert_law(np.bincount(next_arms, minlength=3), weights / weights.sum())


def test_exp3_by_hand():
    """The first of k = 2 arms always gives 1. After it was taken with p, w₀ = exp(γ/(2p))."""
    agent = EXP3(gamma=0.4)
    arms = chosen_arms(agent, Bernoulli(means=(1.0, 0.0)), num_steps=3)

    def probability(exponent):
        return 0.6 * logistic(exponent) + 0.2

    assert_share(arms[:, 0] == 0, 0.5)
    second = probability(0.4)  # γ / (2 · 1/2)
    assert_share(arms[arms[:, 0] == 0][:, 1] == 0, second)
    assert_share(arms[arms[:, 0] == 1][:, 1] == 0, 0.5)
    twice = arms[(arms[:, 0] == 0) & (arms[:, 1] == 0)][:, 2]
    assert_share(twice == 0, probability(0.4 + 0.2 / second))
    for order in ((0, 1), (1, 0)):
        once = arms[(arms[:, :2] == order).all(axis=1)][:, 2]
        assert_share(once == 0, probability(0.4))


def test_exp3_always_mixes():
    """γ = 1 draws uniformly. Otherwise every arm keeps at least γ/k, and weights stay finite."""
    environment = Adversarial(rewards=np.tile([1.0, 0.0, 0.0, 0.0], (20_000, 1)))
    result = run(
        EXP3(gamma=1.0), environment, num_runs=256, num_steps=2000, steps_per_point=2000,
        arm_shares=True,
    )  # fmt: skip
    assert_even(result.arm_share[0] * 256 * 2000)
    result = run(
        EXP3(gamma=0.2), environment, num_runs=256, num_steps=20_000, steps_per_point=2000,
        arm_shares=True,
    )  # fmt: skip
    assert_law(result.arm_share[-1] * 256 * 2000, np.array([0.85, 0.05, 0.05, 0.05]))


# Thompson sampling.


@pytest.mark.parametrize(("mean", "std", "noise"), [(0.0, 1.0, 1.0), (1.0, 0.5, 2.0)])
def test_gaussian_posterior_by_hand(mean, std, noise):
    """After a reward r: N(m, v), 1/v = 1/std² + 1/noise², m = v (mean/std² + r/noise²)."""
    agent = GaussianThompson(prior_mean=mean, prior_std=std, noise=noise)
    truth = (2.0, -1.0)
    arms = chosen_arms(agent, GaussianRewards(means=truth, noise=0.0), num_steps=2, num_runs=8192)
    assert_share(arms[:, 0] == 0, 0.5)
    variance = 1 / (std**-2 + noise**-2)
    for arm, reward in enumerate(truth):
        posterior = variance * (mean / std**2 + reward / noise**2)
        again = normal_cdf((posterior - mean) / math.sqrt(variance + std**2))
        assert_share(arms[arms[:, 0] == arm][:, 1] == arm, again)


def test_beta_posterior_by_hand():
    """Arm 0 always gives 1, arm 1 never. P(X > Y) of Beta(a, 1) and Beta(1, 1) is a/(a + 1)."""
    arms = chosen_arms(BetaThompson(), Bernoulli(means=(1.0, 0.0)), num_steps=3, num_runs=8192)
    assert_share(arms[:, 0] == 0, 1 / 2)
    for first in (0, 1):
        assert_share(arms[arms[:, 0] == first][:, 1] == 0, 2 / 3)
    # Beta(3, 1) or Beta(1, 3) against Beta(1, 1): 3/4. Beta(2, 1) against Beta(1, 2): 5/6.
    for first, second, law in ((0, 0, 3 / 4), (1, 1, 3 / 4), (0, 1, 5 / 6), (1, 0, 5 / 6)):
        rows = arms[(arms[:, 0] == first) & (arms[:, 1] == second)]
        assert_share(rows[:, 2] == 0, law)


@pytest.mark.parametrize("prior", [(0.5, 0.5), (0.2, 3.0), (4.0, 1.5), (60.0, 40.0), (3.0, 0.1)])
def test_beta_posterior_of_any_prior(prior):
    """At step 2 an arm that gave 1 has Beta(α + 1, β), the others Beta(α, β)."""
    agent = BetaThompson(prior_alpha=prior[0], prior_beta=prior[1])
    arms = chosen_arms(agent, Bernoulli(means=(1.0, 0.0)), num_steps=2, num_runs=8192)
    assert_share(arms[:, 0] == 0, 0.5)
    rng = np.random.default_rng(0)
    samples = rng.beta(*prior, 1_000_000)
    better = rng.beta(prior[0] + 1, prior[1], 1_000_000)
    worse = rng.beta(prior[0], prior[1] + 1, 1_000_000)

    def above(x, y):  # with β = 0.1 many values are 1
        return ((x > y) + 0.5 * (x == y)).mean()

    assert_share(arms[arms[:, 0] == 0][:, 1] == 0, above(better, samples))
    assert_share(arms[arms[:, 0] == 1][:, 1] == 0, above(samples, worse))


# Environments.

ANY_ARM = EpsilonGreedy(epsilon=1.0)


# Exact values of the testbed.

NUM_RUNS = 200_000


def test_expected_best_arm():
    result = run(ANY_ARM, GaussianRewards(), num_runs=NUM_RUNS, num_steps=1)
    assert_near(result.final_regret, BEST_OF_TEN)
    assert_near(result.mean_reward, 0.0)
    assert_near(result.mean_optimal, 0.1)


@pytest.mark.parametrize(("epsilon", "value"), [(0.0, 0.28209), (0.1, 0.25389)])
def test_second_step(epsilon, value):
    """The agent stays if the first reward was above 0: E[q; r > 0] = E[r; r > 0] / 2 = 1/√(4π)."""
    agent = EpsilonGreedy(epsilon=epsilon)
    result = run(agent, GaussianRewards(), num_runs=NUM_RUNS, num_steps=2, steps_per_point=1)
    assert_near((result.reward[0], result.reward_se[0]), 0.0)
    assert_near((result.reward[1], result.reward_se[1]), value)
    assert value == pytest.approx((1 - epsilon) / math.sqrt(4 * math.pi), abs=1e-5)


def test_ucb_starts_with_every_arm():
    result = run(UCB(), GaussianRewards(), num_runs=NUM_RUNS, num_steps=11, steps_per_point=1)
    for point in range(10):
        assert_near((result.reward[point], result.reward_se[point]), 0.0, sigmas=5)
        assert_near((result.optimal[point], result.optimal_se[point]), 0.1, sigmas=5)
    # The eleventh step takes the arm with the largest reward: 1/√2 of the best of ten.
    eleventh = BEST_OF_TEN / math.sqrt(2)
    assert eleventh == pytest.approx(1.088, abs=5e-4)
    assert_near((result.reward[10], result.reward_se[10]), eleventh)
    assert_near((result.optimal[10], result.optimal_se[10]), 0.432, error=0.0005)


@pytest.mark.parametrize(
    ("epsilon", "reward", "optimal"), [(0.1, 1.3849, 0.91), (0.01, 1.5234, 0.991)]
)
def test_long_run_limits(epsilon, reward, optimal):
    """With little noise and every arm tried, only exploration loses reward."""
    agent = EpsilonGreedy(epsilon=epsilon, initial_value=100.0)
    environment = GaussianRewards(noise=1e-5)
    result = run(agent, environment, num_runs=40_000, num_steps=400, late_steps=100)
    assert_near(result.late_reward, reward, error=3e-5)
    assert_near(result.late_optimal, optimal, error=1e-4)


@pytest.mark.parametrize("step_size", [32.0, 256.0])
def test_gradient_with_large_steps(step_size):
    """Compare with float64: H must not sink until all weights are equal."""
    num_runs, num_steps, rng = 2048, 200, np.random.default_rng(3)
    values = rng.normal(size=(num_runs, 10))
    heights, total, late = np.zeros((num_runs, 10)), np.zeros(num_runs), 0.0
    rows = np.arange(num_runs)
    for step in range(num_steps):
        weights = np.exp(heights - heights.max(axis=1, keepdims=True))
        shares = weights / weights.sum(axis=1, keepdims=True)
        arms = (shares.cumsum(axis=1) < rng.random((num_runs, 1))).sum(axis=1).clip(0, 9)
        rewards = values[rows, arms] + rng.normal(size=num_runs)
        push = step_size * (rewards - (total / step if step else rewards))
        heights -= push[:, None] * shares
        heights[rows, arms] += push
        total += rewards
        late += values[rows, arms].mean() * (step >= 100) / 100
    result = run(
        Gradient(step_size=step_size), num_runs=num_runs, num_steps=num_steps, late_steps=100
    )
    assert abs(result.late_reward.mean - late) < 5 * math.hypot(result.late_reward.se, 0.015)
    assert late > 0.3  # random arms give 0


def test_ucb_without_bonus_breaks_ties_evenly():
    """UCB with c = 0 tries all arms and is greedy then. Its mean reward at step 5 is 13/36."""
    environment = Bernoulli(means=(0.0, 0.5, 0.0))
    for agent in (UCB(c=0.0), UCB1(scale=0.0)):
        result = run(agent, environment, num_runs=40_000, num_steps=5)
        assert abs(result.reward[4] - 13 / 36) < 4 * result.reward_se[4]


def test_untried_arms_come_first_with_any_rewards():
    for agent in (UCB(c=0.0), UCB(), UCB1()):
        means = tuple(1e9 + 1e8 * arm for arm in range(6))
        result = run(agent, GaussianRewards(means=means, noise=0.0), num_runs=64, num_steps=6,
                     arm_shares=True)  # fmt: skip
        np.testing.assert_allclose(result.sums.arm_pulls.sum(axis=0), 64)
