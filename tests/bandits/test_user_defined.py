"""User-defined agents and environments: compiled, and in plain Python over all runs at once."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest

from hotloop.bandits import (
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    AbruptChange,
    Adversarial,
    BanditSpeedWarning,
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    GaussianRewards,
    Gradient,
    JittedAgent,
    JittedEnvironment,
    RandomWalk,
    compare,
    run,
)
from hotloop.errors import BanditError, ConfigError
from tests.reference.bandits import AGENT, ENVIRONMENT, Randomness

OPTIONS = {"num_runs": 300, "num_steps": 40, "seed": 21, "steps_per_point": 1, "arm_shares": True}


# Compiled.


def greedy_choose(state, params, step, uniform):
    """Choose ε-greedily. The first of equal arms wins."""
    k = int(params[1])
    if uniform[0] < params[0]:
        return int(uniform[1] * k)
    best = 0
    for arm in range(1, k):
        if state[arm] > state[best]:
            best = arm
    return best


def greedy_update(state, params, step, arm, reward):
    k = int(params[1])
    state[k + arm] += 1.0
    state[arm] += (reward - state[arm]) / state[k + arm]


@functools.cache
def jitted_greedy(epsilon, num_arms):
    return JittedAgent(
        choose=greedy_choose,
        update=greedy_update,
        state_size=2 * num_arms,
        params=(epsilon, num_arms),
        name="own greedy",
    )


def ucb_choose(state, params, step, uniform):
    """Choose by the book's UCB, with untried arms first, in random order."""
    k = int(params[1])
    untried = 0
    for arm in range(k):
        if state[k + arm] == 0.0:
            untried += 1
    if untried > 0:
        remaining = int(uniform[2] * untried)
        for arm in range(k):
            if state[k + arm] == 0.0:
                if remaining == 0:
                    return arm
                remaining -= 1
    best, top = 0, -np.inf
    for arm in range(k):
        index = state[arm] + params[0] * math.sqrt(math.log(step) / state[k + arm])
        if index > top:
            best, top = arm, index
    return best


@functools.cache
def jitted_ucb(c, num_arms):
    return JittedAgent(
        choose=ucb_choose,
        update=greedy_update,
        state_size=lambda k: 2 * k,
        params=(c, num_arms),
        name="own ucb",
    )


# One agent and one environment for many tests, since compiling takes a second. The first parameter
# selects what they do, the second is a value.
TAKES_TURNS, ALTERNATES, DRAWS, GOES_ASTRAY, RARELY_FAILS = range(5)
FAILS_AT_START, FAILS, FAILS_LATE = range(5, 8)


def scripted_start(state, params):
    if params[0] == FAILS_AT_START:
        raise ValueError("no")
    state[0] = params[1]


def scripted_choose(state, params, step, uniform):
    kind = params[0]
    if kind == TAKES_TURNS:
        return (step - 1) % int(params[1])
    if kind == ALTERNATES:
        return int(state[0])
    if kind == DRAWS:
        return int(4 * uniform[(step - 1) // 10])
    if kind == GOES_ASTRAY:
        return int(params[1]) if step == 7 else 1
    if kind == RARELY_FAILS:
        return -1 if uniform[0] < 0.02 else 0
    if kind == FAILS and step == 3:
        raise ValueError("no")
    return 0


def scripted_update(state, params, step, arm, reward):
    if params[0] == FAILS_LATE and step == 7:
        raise ValueError("no")
    state[0] = 1.0 - state[0]


def scripted_agent(kind, value=0.0):
    return JittedAgent(
        start=scripted_start,
        choose=scripted_choose,
        update=scripted_update,
        state_size=1,
        params=(kind, value),
    )


ENDS, IS_CHANCE, IS_LARGE, RAISES_AT_START, RAISES, HAS_NO_MEAN = range(6)


def scripted_environment_start(state, params, uniform):
    if params[0] == RAISES_AT_START:
        raise ValueError("no")


def scripted_reward(state, params, step, arm, uniform):
    kind = params[0]
    if kind == ENDS:
        return params[1] if step == 5 else 0.0
    if kind == IS_CHANCE:
        return 1.0 if uniform[0] < 0.2 + 0.1 * arm else 0.0
    if kind == IS_LARGE:
        return 2.0 * uniform[0]
    if kind == RAISES and step == 5:
        raise ValueError("no")
    return 1.0


def scripted_mean(state, params, step, arm):
    if params[0] == HAS_NO_MEAN and arm == 2:
        raise ValueError("no")
    return 1.0


def scripted_environment(kind, value=0.0, num_arms=3):
    return JittedEnvironment(
        num_arms=num_arms,
        start=scripted_environment_start,
        reward=scripted_reward,
        mean=scripted_mean,
        params=(kind, value),
    )


def replay(choose, update, params, num_steps, environment, state_size, *, seed, run_number):
    """Play a compiled agent in a Gaussian environment with given means, in plain Python."""
    random, state, params = Randomness(seed, run_number), np.zeros(state_size), np.array(params)
    arms, rewards = [], []
    for step in range(num_steps):
        arm = choose(state, params, step + 1, random.uniforms(step, AGENT))
        reward = environment.means[arm] + environment.noise * random.noise(step)
        update(state, params, step + 1, arm, reward)
        arms.append(arm)
        rewards.append(reward)
    return np.array(arms), np.array(rewards)


@pytest.mark.parametrize("kind", ["greedy", "ucb"])
def test_compiled_agent_matches_its_functions(kind):
    environment = GaussianRewards(means=(0.5, 1.0, 0.2), noise=0.7)
    agent = jitted_greedy(0.2, 3) if kind == "greedy" else jitted_ucb(1.5, 3)
    choose = greedy_choose if kind == "greedy" else ucb_choose
    result = run(agent, environment, **{**OPTIONS, "num_runs": 30})
    runs = [
        replay(
            choose, greedy_update, (0.2 if kind == "greedy" else 1.5, 3.0), 40, environment, 6,
            seed=21, run_number=number,
        )
        for number in range(30)
    ]  # fmt: skip
    arms, rewards = (np.stack(column) for column in zip(*runs, strict=True))
    counts = (arms[:, :, None] == np.arange(3)).sum(axis=0)
    np.testing.assert_array_equal(np.round(result.arm_share * 30), counts)
    np.testing.assert_allclose(result.reward, rewards.mean(axis=0), atol=1e-5)


IMITATED = {
    "epsilon": (lambda: jitted_greedy(0.1, 10), EpsilonGreedy(epsilon=0.1)),
    "ucb": (lambda: jitted_ucb(2.0, 10), UCB(c=2.0)),
}


@pytest.mark.parametrize("imitated", IMITATED)
@pytest.mark.parametrize(
    "where", [GaussianRewards(), RandomWalk(walk=0.2)], ids=["testbed", "walk"]
)
def test_compiled_agent_performs_like_the_built_in_one(imitated, where):
    """Arms of the testbed are exchangeable, so the order of equal arms does not matter."""
    make, builtin = IMITATED[imitated]
    options = {"num_runs": 6000, "num_steps": 100, "late_steps": 20}
    result, expected = (run(agent, where, **options) for agent in (make(), builtin))
    for name in ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal"):
        estimate, expected_estimate = getattr(result, name), getattr(expected, name)
        assert abs(estimate.mean - expected_estimate.mean) < 4.5 * math.hypot(
            estimate.se, expected_estimate.se
        ), name


def test_start_initializes_the_state_of_a_compiled_agent():
    """The state of every run starts with the values of `start`."""
    environment = Adversarial(rewards=np.tile([0.25, 0.75], (40, 1)))
    for first_choice in (0, 1):
        result = run(scripted_agent(ALTERNATES, first_choice), environment, **OPTIONS)
        expected = (np.arange(40) + first_choice) % 2
        np.testing.assert_array_equal(result.arm_share[:, 1], expected)
        np.testing.assert_array_equal(result.reward, np.where(expected, 0.75, 0.25))


def test_compiled_agent_gets_four_uniforms_per_step():
    where = GaussianRewards(num_arms=4)
    result = run(scripted_agent(DRAWS), where, **{**OPTIONS, "num_runs": 1})
    uniforms = np.stack([Randomness(21, 0).uniforms(step, AGENT) for step in range(40)])
    assert len(np.unique(uniforms)) == 160
    expected = [int(4 * uniforms[step, step // 10]) for step in range(40)]
    np.testing.assert_array_equal(result.arm_share.argmax(axis=1), expected)


def changing_reward(state, params, step, arm, uniform):
    return params[(step - 1) * 3 + arm]


def changing_mean(state, params, step, arm):
    return params[(step - 1) * 3 + arm]


@pytest.mark.parametrize(
    "agent", [EpsilonGreedy(epsilon=0.3), UCB(), Gradient(), MOSS()], ids=lambda agent: agent.name
)
def test_compiled_environment_equals_the_built_in_one(agent):
    """The agents' random numbers are the same, so results are bitwise equal."""
    means = (0.25, 1.5, -1.0)
    environment = JittedEnvironment(
        num_arms=3, reward=changing_reward, mean=changing_mean, params=means * OPTIONS["num_steps"]
    )
    result, expected = (
        run(agent, where, **OPTIONS)
        for where in (environment, GaussianRewards(means=means, noise=0.0))
    )
    for name in ("reward", "reward_se", "optimal", "regret", "regret_se", "arm_share"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(result.final_regrets, expected.final_regrets)
    assert result.regret[-1] > 0


def test_compiled_environment_with_changing_rewards():
    rewards = np.random.default_rng(0).uniform(0, 1, (40, 3)).astype(np.float32)
    environment = JittedEnvironment(
        num_arms=3, reward=changing_reward, mean=changing_mean, params=rewards.ravel()
    )
    agent = EpsilonGreedy(epsilon=0.3)
    result, adversarial = (
        run(agent, where, **OPTIONS) for where in (environment, Adversarial(rewards=rewards))
    )
    np.testing.assert_array_equal(result.arm_share, adversarial.arm_share)
    np.testing.assert_array_equal(result.reward, adversarial.reward)
    # This regret is against each step's best arm, not against the best in hindsight.
    best = rewards.max(axis=1)
    expected = np.cumsum(best - (result.arm_share * rewards).sum(axis=1))
    np.testing.assert_allclose(result.regret, expected, rtol=1e-5)


def walk_start(state, params, uniform):
    for arm in range(4):
        state[arm] = uniform[arm]


def walk_reward(state, params, step, arm, uniform):
    """Return a reward from the arm's value, which decays, and from two uniforms."""
    reward = state[arm] + params[0] * (uniform[0] - 0.5) + params[1] * uniform[3]
    state[arm] *= 0.9
    return reward


def test_compiled_environment_matches_its_functions():
    environment = JittedEnvironment(
        num_arms=4, reward=walk_reward, start=walk_start, state_size=4, params=(0.5, 0.1)
    )
    result = run(EpsilonGreedy(epsilon=1.0), environment, **{**OPTIONS, "num_runs": 20})
    rewards, counts = np.zeros((20, 40)), np.zeros((40, 4))
    for number in range(20):
        random, state = Randomness(21, number), np.zeros(4)
        walk_start(state, None, random.uniforms(0xFFFFFFFF, ENVIRONMENT))
        for step in range(40):
            arm = random.policy(step) * 4 >> 32
            uniform = random.uniforms(step, ENVIRONMENT)
            rewards[number, step] = walk_reward(state, (0.5, 0.1), step + 1, arm, uniform)
            counts[step, arm] += 1
    np.testing.assert_array_equal(np.round(result.arm_share * 20), counts)
    np.testing.assert_allclose(result.reward, rewards.mean(axis=0), atol=1e-6)
    for name in ("optimal", "optimal_se", "regret", "regret_se", "final_regrets"):
        assert np.isnan(getattr(result, name)).all(), name
    assert math.isnan(result.final_regret.mean)
    assert math.isnan(result.late_optimal.mean)
    assert math.isfinite(result.mean_reward.mean)


def test_compiled_agent_in_a_compiled_environment():
    """Agent and environment draw separate uniforms."""
    environment = JittedEnvironment(
        num_arms=3, reward=changing_reward, mean=changing_mean, params=(0.1, 0.5, 0.3) * 40
    )
    result = run(jitted_greedy(0.0, 3), environment, **OPTIONS)
    np.testing.assert_allclose(
        result.reward, 0.1, rtol=1e-6
    )  # the first of equal arms in every step
    ucb_result = run(jitted_ucb(0.01, 3), environment, **OPTIONS)
    np.testing.assert_allclose(ucb_result.reward[3:8], 0.5, rtol=1e-6)
    assert (ucb_result.optimal[3:8] == 1.0).all()


@pytest.mark.parametrize("kind", ["agent", "environment"])
def test_compiled_results_do_not_depend_on_threads(kind):
    if kind == "agent":
        agent, where = jitted_greedy(0.2, 10), GaussianRewards()
    else:
        agent = EpsilonGreedy()
        where = JittedEnvironment(
            num_arms=4, reward=walk_reward, start=walk_start, state_size=4, params=(0.5, 0.1)
        )
    options = {**OPTIONS, "num_runs": 2600}
    results = [run(agent, where, threads=threads, **options) for threads in (1, 2, 3)]
    for result in results[1:]:
        assert result.sums.curve.tobytes() == results[0].sums.curve.tobytes()
        assert result.final_regrets.tobytes() == results[0].final_regrets.tobytes()


def test_comparison_of_compiled_and_built_in_agents():
    """Each agent has the results of a single run, with the same noise."""
    agents = (jitted_greedy(0.1, 5), EpsilonGreedy(), jitted_ucb(2.0, 5))
    together = compare(agents, GaussianRewards(num_arms=5), **OPTIONS)
    for agent, result in zip(agents, together.results, strict=True):
        single = run(agent, GaussianRewards(num_arms=5), **OPTIONS)
        assert single.sums.curve.tobytes() == result.sums.curve.tobytes()
    assert together.difference(0, 1).se > 0


# Plain Python, vectorized over runs.


class PlainGreedy:
    name = "plain greedy"

    def __init__(self, epsilon, *, by_hand=None):
        self.epsilon = epsilon
        self.by_hand = by_hand

    def start(self, num_runs, num_arms, rng):
        self.rng = rng
        self.rows = np.arange(num_runs)
        self.num_arms = num_arms
        self.value = np.zeros((num_runs, num_arms))
        self.count = np.zeros((num_runs, num_arms))

    def choose(self, step):
        size = len(self.rows)
        noise = self.rng.random((size, self.num_arms))
        greedy = np.lexsort((noise, self.value), axis=1)[:, -1]
        exploring = self.rng.integers(0, self.num_arms, size)
        return np.where(self.rng.random(size) < self.epsilon, exploring, greedy)

    def update(self, step, arm, reward):
        self.count[self.rows, arm] += 1
        error = reward - self.value[self.rows, arm]
        self.value[self.rows, arm] += error / self.count[self.rows, arm]


class PlainGaussian:
    name = "plain gaussian"

    def __init__(self, num_arms=10, *, has_mean=True):
        self.num_arms = num_arms
        if has_mean:
            self.mean = self._mean

    def start(self, num_runs, rng):
        self.rng = rng
        self.rows = np.arange(num_runs)
        self.means = rng.normal(size=(num_runs, self.num_arms))

    def reward(self, step, arm):
        return self.means[self.rows, arm] + self.rng.normal(size=len(self.rows))

    def _mean(self, step):
        return self.means


class RoundRobin:
    """An agent that takes the arms in turn and records its updates."""

    name = "in turn"

    def __init__(self, *, start_at=1):
        self.start_at = start_at
        self.updates = []

    def start(self, num_runs, num_arms, rng):
        self.num_runs, self.num_arms = num_runs, num_arms
        self.updates.append([])

    def choose(self, step):
        return np.full(self.num_runs, (step - self.start_at) % self.num_arms)

    def update(self, step, arm, reward):
        assert arm.shape == reward.shape == (self.num_runs,)
        self.updates[-1].append((step, arm.copy(), reward.copy()))


PLAIN = pytest.mark.filterwarnings("ignore::hotloop.bandits.BanditSpeedWarning")


@PLAIN
@pytest.mark.parametrize("user_part", ["agent", "environment", "both"])
def test_plain_python_performs_like_the_built_in_ones(user_part):
    agent = EpsilonGreedy() if user_part == "environment" else PlainGreedy(0.1)
    where = GaussianRewards() if user_part == "agent" else PlainGaussian()
    options = {"num_runs": 6000, "num_steps": 60, "late_steps": 20}
    result, expected = (
        run(agent, where, **options),
        run(EpsilonGreedy(), GaussianRewards(), **options),
    )
    for name in ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal"):
        estimate, expected_estimate = getattr(result, name), getattr(expected, name)
        assert abs(estimate.mean - expected_estimate.mean) < 4.5 * math.hypot(
            estimate.se, expected_estimate.se
        ), name
        assert estimate.se == pytest.approx(expected_estimate.se, rel=0.1)


@PLAIN
@pytest.mark.parametrize(
    "where",
    [
        GaussianRewards(num_arms=4, noise=0.5),
        Bernoulli(means=(0.2, 0.5, 0.8)),
        RandomWalk(num_arms=5),
        AbruptChange(num_arms=3, every=7),
        Adversarial(rewards=np.random.default_rng(0).uniform(0, 1, (40, 3))),
    ],
    ids=lambda where: where.name,
)
def test_plain_agent_gets_the_rewards_of_compiled_ones(where):
    """Both take the arms in turn and must get the same rewards."""

    compiled, plain = scripted_agent(TAKES_TURNS, where.num_arms), RoundRobin()
    result, expected = (run(agent, where, **OPTIONS) for agent in (plain, compiled))
    for name in ("reward", "reward_se", "optimal", "regret", "arm_share"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=1e-5)
    np.testing.assert_allclose(result.final_regrets, expected.final_regrets, atol=1e-4)
    steps = [step for step, _, _ in plain.updates[0]]
    assert steps == list(range(1, 41))
    rewards = np.concatenate(
        [np.stack([reward for _, _, reward in runs]) for runs in plain.updates], 1
    )
    np.testing.assert_allclose(rewards.mean(axis=1), result.reward, atol=1e-5)


@PLAIN
def test_plain_environment_with_compiled_agents():
    class Fixed:
        num_arms = 3

        def start(self, num_runs, rng):
            self.num_runs = num_runs

        def reward(self, step, arm):
            assert arm.shape == (self.num_runs,)
            return np.array([0.25, 1.5, -1.0])[arm]

        def mean(self, step):
            return np.tile([0.25, 1.5, -1.0], (self.num_runs, 1))

    built_in = GaussianRewards(means=(0.25, 1.5, -1.0), noise=0.0)
    for agent in (EpsilonGreedy(epsilon=0.3), UCB(), jitted_greedy(0.3, 3)):
        result, expected = run(agent, Fixed(), **OPTIONS), run(agent, built_in, **OPTIONS)
        for name in ("reward", "optimal", "regret", "arm_share"):
            np.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=1e-6)


@PLAIN
def test_plain_python_is_repeatable():
    results = [run(PlainGreedy(0.1), PlainGaussian(), **OPTIONS) for _ in range(2)]
    assert results[0].sums.curve.tobytes() == results[1].sums.curve.tobytes()
    other = run(PlainGreedy(0.1), PlainGaussian(), **{**OPTIONS, "seed": 22})
    assert results[0].sums.curve.tobytes() != other.sums.curve.tobytes()


def test_plain_python_warns_about_speed():
    for agent, where in ((PlainGreedy(0.1), GaussianRewards()), (EpsilonGreedy(), PlainGaussian())):
        with pytest.warns(BanditSpeedWarning, match="Jitted") as caught:
            run(agent, where, num_runs=10, num_steps=5)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(jitted_greedy(0.1, 10), GaussianRewards(), num_runs=10, num_steps=5)
        run(EpsilonGreedy(), GaussianRewards(), num_runs=10, num_steps=5)


# Invalid results of user code.


def wrong_at(step, run_number, bad_arm, good_arm):
    """Return an agent whose arm is wrong in one run at one step."""

    def choose(current_step):
        arms = np.full(agent.num_runs, good_arm)
        arms[run_number] = bad_arm if current_step == step else good_arm
        return arms

    agent = RoundRobin()
    agent.name, agent.choose = "wrong", choose
    return agent


@pytest.mark.parametrize("arm", [-1, 3, 1000])
def test_compiled_arm_out_of_range(arm):
    agent, where = scripted_agent(GOES_ASTRAY, arm), GaussianRewards(num_arms=3)
    with pytest.raises(BanditError, match=f"'own' took arm {arm} at step 7") as caught:
        run(agent, where, num_runs=300, num_steps=10)
    assert "3" in str(caught.value) or "2" in str(caught.value)  # the valid range
    run(EpsilonGreedy(), GaussianRewards(num_arms=3), num_runs=10, num_steps=10)  # not affected


@PLAIN
@pytest.mark.parametrize("arm", [-1, 3, 1000])
def test_plain_arm_out_of_range(arm):
    with pytest.raises(BanditError, match="wrong") as caught:
        run(wrong_at(7, 5, arm, 1), GaussianRewards(num_arms=3), num_runs=300, num_steps=10)
    assert str(arm) in str(caught.value)
    assert "7" in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_compiled_reward_must_be_finite(value):
    where = scripted_environment(ENDS, value, num_arms=2)
    for agent in (EpsilonGreedy(), jitted_greedy(0.1, 2)):
        with pytest.raises(BanditError, match="environment 'own'") as caught:
            run(agent, where, num_runs=300, num_steps=10)
        assert ("nan" if math.isnan(value) else "inf") in str(caught.value)
        assert "5" in str(caught.value)


def test_padding_runs_of_a_block_cannot_fail():
    """Runs come in blocks. Errors of runs beyond `num_runs` are ignored."""
    firsts = [
        Randomness(21, number).uniforms(step, AGENT)[0]
        for number in range(256)
        for step in range(5)
    ]
    assert min(firsts[:5]) >= 0.02 > min(firsts)
    where, options = GaussianRewards(num_arms=2), {**OPTIONS, "num_runs": 1, "num_steps": 5}
    result = run(scripted_agent(RARELY_FAILS), where, **options)
    np.testing.assert_array_equal(result.arm_share[:, 0], 1.0)


@PLAIN
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_plain_reward_must_be_finite(value):
    class Broken(PlainGaussian):
        name = "broken"

        def reward(self, step, arm):
            rewards = super().reward(step, arm)
            if step == 5:
                rewards[-1] = value
            return rewards

    for agent in (EpsilonGreedy(), PlainGreedy(0.1)):
        with pytest.raises(BanditError, match="broken") as caught:
            run(agent, Broken(), num_runs=300, num_steps=10)
        assert ("nan" if math.isnan(value) else "inf") in str(caught.value)


def test_plain_results_of_wrong_shape_or_type():
    scalar, fractions, short = RoundRobin(), RoundRobin(), PlainGaussian()
    scalar.choose = lambda step: 1
    fractions.choose = lambda step: np.full(fractions.num_runs, 0.5)
    short.reward = lambda step, arm: PlainGaussian.reward(short, step, arm)[:-1]
    for agent, where, name in (
        (scalar, GaussianRewards(), "in turn"),
        (fractions, GaussianRewards(), "in turn"),
        (EpsilonGreedy(), short, "plain gaussian"),
    ):
        with pytest.raises(BanditError, match=name):
            run(agent, where, num_runs=30, num_steps=5)


def test_differences_are_paired_in_stateful_environments():
    """Agents get the same random numbers, so their runs are paired."""
    environment = scripted_environment(IS_CHANCE)
    agents = [EpsilonGreedy(epsilon=0.5), EpsilonGreedy(), EpsilonGreedy(epsilon=0.5)]
    settings = {"num_runs": 300, "num_steps": 20}
    comparison = compare(agents, environment, **settings)
    assert tuple(comparison.difference(0, 2)) == (0.0, 0.0)
    paired = comparison.difference(0, 1)
    results = [comparison.results[agent].mean_reward for agent in (0, 1)]
    assert paired.mean == pytest.approx(results[0].mean - results[1].mean)
    # Differences of sums over one more run each are single runs.
    means = np.array(
        [
            [
                compare(agents[:2], environment, num_runs=runs, num_steps=20)
                .results[agent]
                .sums.totals[0, 0]
                for runs in (1, 2, 3, 4, 5)
            ]
            for agent in (0, 1)
        ]
    )
    runs_by_agent = np.diff(means, axis=1, prepend=0)
    expected = (runs_by_agent[0] - runs_by_agent[1]).std(ddof=1) / math.sqrt(5)
    five = compare(agents[:2], environment, num_runs=5, num_steps=20)
    assert five.difference(0, 1).se == pytest.approx(expected)


@pytest.mark.parametrize("agent", [BetaThompson(), KLUCB(), EXP3()])
def test_rewards_outside_an_agents_range(agent):
    environment = scripted_environment(IS_LARGE, num_arms=4)
    run(EpsilonGreedy(), environment, num_runs=2, num_steps=100)
    with pytest.raises(BanditError, match=r"reward 1\..* of run .* from 0 to 1: scale them"):
        run(agent, environment, num_runs=2, num_steps=100)


def no_update(state, params, step, arm, reward):
    pass


def first_arm(state, params, step, uniform):
    return 0


@pytest.mark.parametrize(("kind", "step"), [(FAILS_AT_START, 1), (FAILS, 3), (FAILS_LATE, 7)])
def test_agent_that_raises(kind, step):
    agent = scripted_agent(kind)
    with pytest.raises(BanditError, match=f"agent 'own' raised .* at step {step} of run 0;"):
        run(agent, num_runs=3, num_steps=7)
    # The same holds beside a built-in agent.
    with pytest.raises(BanditError, match=f"agent 'own' raised .* at step {step} of run 0;"):
        compare([EpsilonGreedy(), agent], num_runs=3, num_steps=7)


@pytest.mark.parametrize("kind", [RAISES_AT_START, RAISES, HAS_NO_MEAN])
def test_environment_that_raises(kind):
    with pytest.raises(BanditError, match="environment 'own' raised an exception at step"):
        run(EpsilonGreedy(), scripted_environment(kind), num_runs=3, num_steps=7)


def test_arm_must_be_an_integer():
    def half(state, params, step, uniform):
        return 0.5

    agent = JittedAgent(choose=half, update=no_update, state_size=0)
    with pytest.raises(BanditError, match=r"took arm 0\.5 at step 1 of run 0"):
        run(agent, num_runs=3, num_steps=7)


def test_sizes_have_a_limit():
    with pytest.raises(ConfigError, match=r"`num_arms` of own must be .* to 4,096, got 8192"):
        JittedEnvironment(num_arms=8192, reward=first_arm)
    with pytest.raises(ConfigError, match="`state_size` of own must be"):
        JittedAgent(choose=first_arm, update=no_update, state_size=10**13)


def test_warning_names_the_callers_file():
    for call in (run, lambda agent, **settings: compare([agent], **settings)):
        with pytest.warns(BanditSpeedWarning) as caught:
            call(RoundRobin(), num_runs=3, num_steps=2)
        assert caught[0].filename == __file__


def test_plain_errors_name_the_global_run_number():
    class WrongInSecondChunk(RoundRobin):
        def choose(self, step):
            arms = np.zeros(self.num_runs, int)
            if self.num_runs < 2048:
                arms[4] = 99
            return arms

    with pytest.warns(BanditSpeedWarning), pytest.raises(BanditError, match="of run 2052"):
        run(WrongInSecondChunk(), num_runs=2058, num_steps=2)
