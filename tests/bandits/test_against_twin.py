"""Agents in all suitable environments match their slow twin, the reference, arm by arm."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.bandits import (
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    AbruptChange,
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
    RandomWalk,
    compare,
    run,
)
from tests.reference.bandits import play, play_all

MATRIX = np.random.default_rng(0).integers(0, 2, (60, 3)).astype(np.float64)
# With a mean reward near 1, KL-UCB's first indices would be 1 in float64.
GRADED = np.random.default_rng(1).uniform(0, 0.6, (60, 6)) ** [3, 2, 2, 1, 1, 1]

ENVIRONMENTS = {
    "testbed": GaussianRewards(),
    "two arms": GaussianRewards(num_arms=2, mean=1.0, spread=0.5, noise=0.3),
    "thirteen arms": GaussianRewards(num_arms=13, mean=-2.0, spread=3.0, noise=2.0),
    "given means": GaussianRewards(means=(0.25, 1.5, -1.0), noise=0.5),
    "bernoulli": Bernoulli(means=(0.9, 0.8, 0.3)),
    "many bernoulli": Bernoulli(means=(0.1, 0.05, 0.05, 0.05, 0.02, 0.02, 0.02)),
    "walk": RandomWalk(num_arms=5, walk=0.3, start=0.5, noise=0.7),
    "walk of two": RandomWalk(num_arms=2, walk=1.0, noise=0.1),
    "walk of three": RandomWalk(num_arms=3, walk=0.1, start=-2.0),
    "walk of ten": RandomWalk(),
    "change": AbruptChange(num_arms=6, every=7, mean=0.5, spread=2.0, noise=0.5),
    "zeros and ones": Adversarial(rewards=MATRIX),
    "graded": Adversarial(rewards=GRADED),
    "contextual": LinearContextual(num_arms=4, dimension=3),
    "contextual, large": LinearContextual(num_arms=3, dimension=9, noise=0.5),
}
BINARY = ("bernoulli", "many bernoulli", "zeros and ones")
BOUNDED = (*BINARY, "graded")
CONTEXTUAL = ("contextual", "contextual, large")
ANY = tuple(
    name for name in ENVIRONMENTS if name not in CONTEXTUAL and not name.startswith("walk of")
)
# Other options than the defaults are tested in these environments only.
SOME = ("testbed", "walk", "zeros and ones")

AGENTS = {
    "greedy": (EpsilonGreedy(epsilon=0.0), ANY),
    "epsilon": (EpsilonGreedy(epsilon=0.1), ANY),
    "epsilon, often": (EpsilonGreedy(epsilon=0.6, initial_value=0.5), SOME),
    "epsilon, always": (
        EpsilonGreedy(epsilon=1.0),
        ("testbed", "bernoulli", "walk", "walk of two", "walk of three", "walk of ten"),
    ),
    "epsilon, constant step": (EpsilonGreedy(step_size=0.3, initial_value=-1.0), SOME),
    "epsilon, decaying": (EpsilonGreedy(epsilon=0.8, epsilon_decay=0.2), SOME),
    "optimistic": (Optimistic(initial_value=3.0, step_size=0.2), ANY),
    "optimistic, averages": (Optimistic(initial_value=3.0, step_size=None), SOME),
    "ucb": (UCB(), ANY),
    "ucb, little": (UCB(c=0.25, step_size=0.2), SOME),
    "ucb1": (UCB1(), ANY),
    "ucb1, half": (UCB1(scale=0.5**0.5), BOUNDED),
    "gradient": (Gradient(), ANY),
    "gradient, fast": (Gradient(step_size=1.0), SOME),
    "gradient, no baseline": (Gradient(step_size=0.4, baseline=False), SOME),
    "gaussian thompson": (GaussianThompson(), ANY),
    "gaussian thompson, other": (
        GaussianThompson(prior_mean=2.0, prior_std=3.0, noise=0.5),
        ("testbed", "given means", "walk"),
    ),
    "beta thompson": (BetaThompson(), BINARY),
    "beta thompson, other": (BetaThompson(prior_alpha=0.5, prior_beta=2.5), BINARY),
    "kl-ucb": (KLUCB(), BOUNDED),
    "kl-ucb, 3": (KLUCB(c=3.0), BOUNDED),
    "exp3": (EXP3(), BOUNDED),
    "exp3, fast": (EXP3(gamma=0.7), BOUNDED),
    "moss": (MOSS(), ANY),
    "lin-ucb": (LinUCB(), CONTEXTUAL),
    "lin-ucb, other": (LinUCB(alpha=0.3, ridge=5.0), CONTEXTUAL),
    "lin-ts": (LinTS(), CONTEXTUAL),
    "lin-ts, other": (LinTS(scale=0.2, ridge=0.5), CONTEXTUAL),
}
CASES = [(agent, where) for agent, (_, fits) in AGENTS.items() for where in fits]


def pull_counts(arms, num_arms):
    """Return how many runs took each arm at each step, (num_steps, num_arms)."""
    return (arms[:, :, None] == np.arange(num_arms)).sum(axis=0)


def assert_same(result, twin):
    """Compare curves with one point per step and all statistics of whole runs."""
    num_runs, num_steps = twin.arm.shape
    pulls = pull_counts(twin.arm, result.environment.num_arms)
    np.testing.assert_array_equal(np.round(result.arm_share * num_runs), pulls)
    np.testing.assert_array_equal(result.step, np.arange(1, num_steps + 1))
    for name in ("reward", "optimal", "regret"):
        runs = getattr(twin, name)
        scale = max(1.0, np.abs(runs).max())
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / num_runs**0.5
        np.testing.assert_allclose(getattr(result, name), mean, atol=2e-6 * scale, err_msg=name)
        # Where all runs agree the sums of squares cancel.
        np.testing.assert_allclose(getattr(result, f"{name}_se"), error, atol=3e-5 * scale)
    late = result.late_steps
    for name, runs in {
        "mean_reward": twin.reward.mean(axis=1),
        "mean_optimal": twin.optimal.mean(axis=1),
        "final_regret": twin.regret[:, -1],
        "late_reward": twin.reward[:, -late:].mean(axis=1),
        "late_optimal": twin.optimal[:, -late:].mean(axis=1),
    }.items():
        mean, error = getattr(result, name)
        scale = max(1.0, np.abs(runs).max())
        assert mean == pytest.approx(runs.mean(), abs=2e-6 * scale), name
        assert error == pytest.approx(runs.std(ddof=1) / num_runs**0.5, abs=3e-5 * scale), name
    scale = max(1.0, twin.regret[:, -1].max())
    np.testing.assert_allclose(result.final_regrets, twin.regret[:, -1], atol=1e-5 * scale)


@pytest.mark.parametrize(("agent", "where"), CASES)
def test_matches_twin_arm_by_arm(agent, where):
    agent, environment = AGENTS[agent][0], ENVIRONMENTS[where]
    options = {"seed": 1234567891011, "num_runs": 16, "num_steps": 40}
    twin = play_all(agent, environment, **options)
    assert_same(run(agent, environment, **options, steps_per_point=1, arm_shares=True), twin)


@pytest.mark.parametrize("where", ["testbed", "walk", "bernoulli"])
def test_matches_twin_beyond_a_block(where):
    options = {"seed": 5, "num_runs": 300, "num_steps": 9}
    agent, environment = EpsilonGreedy(epsilon=0.3), ENVIRONMENTS[where]
    twin = play_all(agent, environment, **options)
    assert_same(run(agent, environment, **options, steps_per_point=1, arm_shares=True), twin)


@pytest.mark.parametrize("where", ["testbed", "walk of three"])
def test_matches_twin_in_later_blocks_and_chunks(where):
    options = {"seed": 6, "num_steps": 8}
    agent, environment = EpsilonGreedy(epsilon=0.5), ENVIRONMENTS[where]
    regrets = run(agent, environment, **options, num_runs=4200).final_regrets
    for number in (0, 255, 256, 1000, 2047, 2048, 2303, 2304, 4095, 4096, 4199):
        twin = play(agent, environment, **options, run=number)
        assert regrets[number] == pytest.approx(twin.regret[-1], abs=1e-5)


@pytest.mark.parametrize("where", ["testbed", "change"])
def test_matches_twin_in_long_runs(where):
    options = {"seed": 2**63 + 12345, "num_runs": 12, "num_steps": 700}
    agent, environment = UCB(), ENVIRONMENTS[where]
    twin = play_all(agent, environment, **options)
    assert_same(run(agent, environment, **options, steps_per_point=1, arm_shares=True), twin)


def test_points_of_several_steps():
    """The last point has fewer steps, and late steps need not be whole points."""
    options = {"seed": 3, "num_runs": 40, "num_steps": 50}
    agent, environment = Gradient(), GaussianRewards(num_arms=4)
    twin = play_all(agent, environment, **options)
    result = run(
        agent, environment, **options, steps_per_point=8, late_steps=13, arm_shares=True
    )  # fmt: skip
    ends = np.array([8, 16, 24, 32, 40, 48, 50])
    np.testing.assert_array_equal(result.step, ends)
    starts = np.append(0, ends[:-1])
    assert result.arm_share.shape == (7, 4)
    for point, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for name in ("reward", "optimal"):
            runs = getattr(twin, name)[:, start:end].mean(axis=1)
            mean, error = (getattr(result, kind)[point] for kind in (name, f"{name}_se"))
            assert mean == pytest.approx(runs.mean(), abs=2e-6)
            assert error == pytest.approx(runs.std(ddof=1) / 40**0.5, abs=3e-5)
        assert result.regret[point] == pytest.approx(twin.regret[:, end - 1].mean(), abs=2e-5)
        share = pull_counts(twin.arm, 4)[start:end].sum(axis=0) / (40 * (end - start))
        np.testing.assert_allclose(result.arm_share[point], share, atol=1e-12)
    late = twin.reward[:, -13:].mean(axis=1)
    assert result.late_reward.mean == pytest.approx(late.mean(), abs=2e-6)
    assert result.late_reward.se == pytest.approx(late.std(ddof=1) / 40**0.5, abs=3e-5)
    assert result.late_optimal.mean == pytest.approx(twin.optimal[:, -13:].mean(), abs=1e-9)


def test_differences_are_paired():
    agents = (UCB(), EpsilonGreedy(), GaussianThompson())
    environment, options = GaussianRewards(num_arms=5), {"seed": 8, "num_runs": 50, "num_steps": 40}
    twins = [play_all(agent, environment, **options) for agent in agents]
    comparison = compare(agents, environment, **options, late_steps=10)
    for i, j in ((0, 1), (1, 0), (2, 1), (0, 2)):
        for quantity, runs in {
            "mean_reward": twins[i].reward.mean(axis=1) - twins[j].reward.mean(axis=1),
            "mean_optimal": twins[i].optimal.mean(axis=1) - twins[j].optimal.mean(axis=1),
            "final_regret": twins[i].regret[:, -1] - twins[j].regret[:, -1],
            "late_reward": (twins[i].reward - twins[j].reward)[:, -10:].mean(axis=1),
            "late_optimal": (twins[i].optimal - twins[j].optimal)[:, -10:].mean(axis=1),
        }.items():
            mean, error = comparison.difference(i, j, quantity)
            assert mean == pytest.approx(runs.mean(), abs=1e-5), quantity
            assert error == pytest.approx(runs.std(ddof=1) / 50**0.5, rel=1e-4), quantity
    mean, error = comparison.difference(1, 1)
    assert (mean, error) == (0.0, 0.0)
