"""A user's own agents and environments: compiled ones, and plain Python over all runs at once."""

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
    Gaussian,
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
    """ε-greedy, the first of equals."""
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
def own_greedy(epsilon, num_arms):
    return JittedAgent(
        choose=greedy_choose,
        update=greedy_update,
        state_size=2 * num_arms,
        params=(epsilon, num_arms),
        name="own greedy",
    )


def ucb_choose(state, params, step, uniform):
    """The book's, untried arms first, at random."""
    k = int(params[1])
    untried = 0
    for arm in range(k):
        if state[k + arm] == 0.0:
            untried += 1
    if untried > 0:
        left = int(uniform[2] * untried)
        for arm in range(k):
            if state[k + arm] == 0.0:
                if left == 0:
                    return arm
                left -= 1
    best, top = 0, -np.inf
    for arm in range(k):
        index = state[arm] + params[0] * math.sqrt(math.log(step) / state[k + arm])
        if index > top:
            best, top = arm, index
    return best


@functools.cache
def own_ucb(c, num_arms):
    return JittedAgent(
        choose=ucb_choose,
        update=greedy_update,
        state_size=lambda k: 2 * k,
        params=(c, num_arms),
        name="own ucb",
    )


def replayed(choose, update, params, num_steps, environment, state_size, *, seed, run_number):
    """What a compiled agent does in a Gaussian environment with given means, in plain Python."""
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
def test_a_compiled_agent_does_what_its_functions_say(kind):
    environment = Gaussian(means=(0.5, 1.0, 0.2), noise=0.7)
    agent = own_greedy(0.2, 3) if kind == "greedy" else own_ucb(1.5, 3)
    choose = greedy_choose if kind == "greedy" else ucb_choose
    result = run(agent, environment, **{**OPTIONS, "num_runs": 30})
    runs = [
        replayed(
            choose, greedy_update, (0.2 if kind == "greedy" else 1.5, 3.0), 40, environment, 6,
            seed=21, run_number=number,
        )
        for number in range(30)
    ]  # fmt: skip
    arms, rewards = (np.stack(each) for each in zip(*runs, strict=True))
    counts = (arms[:, :, None] == np.arange(3)).sum(axis=0)
    np.testing.assert_array_equal(np.round(result.arm_share * 30), counts)
    np.testing.assert_allclose(result.reward, rewards.mean(axis=0), atol=1e-5)


IMITATED = {
    "epsilon": (lambda: own_greedy(0.1, 10), EpsilonGreedy(epsilon=0.1)),
    "ucb": (lambda: own_ucb(2.0, 10), UCB(c=2.0)),
}


@pytest.mark.parametrize("imitated", IMITATED)
@pytest.mark.parametrize("where", [Gaussian(), RandomWalk(walk=0.2)], ids=["testbed", "walk"])
def test_a_compiled_agent_as_good_as_what_it_imitates(imitated, where):
    """Arms of the testbed are exchangeable: which of equals is taken first is all the same."""
    made, builtin = IMITATED[imitated]
    options = {"num_runs": 6000, "num_steps": 100, "late_steps": 20}
    own, other = (run(agent, where, **options) for agent in (made(), builtin))
    for name in ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal"):
        one, two = getattr(own, name), getattr(other, name)
        assert abs(one.mean - two.mean) < 4.5 * math.hypot(one.se, two.se), name


def test_start_of_a_compiled_agent():
    """Its state begins at zero, or as `start` leaves it, in every run anew."""

    def start(state, params):
        state[0] = params[0]

    def choose(state, params, step, uniform):
        return int(state[0])

    def update(state, params, step, arm, reward):
        state[0] = 1.0 - state[0]

    environment = Adversarial(rewards=np.tile([0.25, 0.75], (40, 1)))
    for first in (0, 1):
        agent = JittedAgent(
            choose=choose, update=update, start=start, state_size=1, params=(first,)
        )  # fmt: skip
        result = run(agent, environment, **OPTIONS)
        expected = (np.arange(40) + first) % 2
        np.testing.assert_array_equal(result.arm_share[:, 1], expected)
        np.testing.assert_array_equal(result.reward, np.where(expected, 0.75, 0.25))


def test_uniforms_of_a_compiled_agent():
    """Four a step, their own in each."""

    def choose(state, params, step, uniform):
        return int(4 * uniform[(step - 1) // 10])

    def update(state, params, step, arm, reward):
        pass

    agent = JittedAgent(choose=choose, update=update, state_size=0)
    result = run(agent, Gaussian(num_arms=4), **{**OPTIONS, "num_runs": 1})
    uniforms = np.stack([Randomness(21, 0).uniforms(step, AGENT) for step in range(40)])
    assert len(np.unique(uniforms)) == 160
    expected = [int(4 * uniforms[step, step // 10]) for step in range(40)]
    np.testing.assert_array_equal(result.arm_share.argmax(axis=1), expected)


def fixed_reward(state, params, step, arm, uniform):
    return params[arm]


def fixed_mean(state, params, step, arm):
    return params[arm]


def changing_reward(state, params, step, arm, uniform):
    return params[(step - 1) * 3 + arm]


def changing_mean(state, params, step, arm):
    return params[(step - 1) * 3 + arm]


@pytest.mark.parametrize(
    "agent",
    [EpsilonGreedy(epsilon=0.3), UCB(), Gradient(), MOSS()],
    ids=lambda agent: agent.name,
)
def test_a_compiled_environment_is_the_one_it_imitates(agent):
    """The agents' random numbers are the same, so every bit is."""
    means = (0.25, 1.5, -1.0)
    own = JittedEnvironment(num_arms=3, reward=fixed_reward, mean=fixed_mean, params=means)
    one, other = (run(agent, where, **OPTIONS) for where in (own, Gaussian(means=means, noise=0.0)))
    for name in ("reward", "reward_se", "optimal", "regret", "regret_se", "arm_share"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.final_regrets, other.final_regrets)
    assert one.regret[-1] > 0


def test_a_compiled_environment_that_changes():
    rewards = np.random.default_rng(0).uniform(0, 1, (40, 3)).astype(np.float32)
    own = JittedEnvironment(
        num_arms=3, reward=changing_reward, mean=changing_mean, params=rewards.ravel()
    )
    agent = EpsilonGreedy(epsilon=0.3)
    one, other = (run(agent, where, **OPTIONS) for where in (own, Adversarial(rewards=rewards)))
    np.testing.assert_array_equal(one.arm_share, other.arm_share)
    np.testing.assert_array_equal(one.reward, other.reward)
    # Regret here is against each step's best arm, there against the best in hindsight.
    best = rewards.max(axis=1)
    expected = np.cumsum(best - (one.arm_share * rewards).sum(axis=1))
    np.testing.assert_allclose(one.regret, expected, rtol=1e-5)


def walk_start(state, params, uniform):
    for arm in range(4):
        state[arm] = uniform[arm]


def walk_reward(state, params, step, arm, uniform):
    """Something of each: the arm's own value, which wears off, and chance."""
    reward = state[arm] + params[0] * (uniform[0] - 0.5) + params[1] * uniform[3]
    state[arm] *= 0.9
    return reward


def test_a_compiled_environment_does_what_its_functions_say():
    own = JittedEnvironment(
        num_arms=4, reward=walk_reward, start=walk_start, state_size=4, params=(0.5, 0.1)
    )
    result = run(EpsilonGreedy(epsilon=1.0), own, **{**OPTIONS, "num_runs": 20})
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


def test_both_compiled():
    """An agent and an environment of one's own, by their own uniforms."""
    own = JittedEnvironment(
        num_arms=3, reward=fixed_reward, mean=fixed_mean, params=(0.1, 0.5, 0.3)
    )
    result = run(own_greedy(0.0, 3), own, **OPTIONS)
    np.testing.assert_allclose(result.reward, 0.1, rtol=1e-6)  # the first of equals, for ever
    again = run(own_ucb(0.01, 3), own, **OPTIONS)
    np.testing.assert_allclose(again.reward[3:8], 0.5, rtol=1e-6)
    assert (again.optimal[3:8] == 1.0).all()


@pytest.mark.parametrize("kind", ["agent", "environment"])
def test_compiled_ones_are_the_same_on_any_thread(kind):
    if kind == "agent":
        agent, where = own_greedy(0.2, 10), Gaussian()
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


def test_compiled_beside_builtin():
    """In a comparison each is as it is alone, and meets the same noise."""
    agents = (own_greedy(0.1, 5), EpsilonGreedy(), own_ucb(2.0, 5))
    together = compare(agents, Gaussian(num_arms=5), **OPTIONS)
    for agent, result in zip(agents, together.results, strict=True):
        single = run(agent, Gaussian(num_arms=5), **OPTIONS)
        assert single.sums.curve.tobytes() == result.sums.curve.tobytes()
    assert together.difference(0, 1).se > 0


# Plain Python, vectorised over runs.


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
        explored = self.rng.integers(0, self.num_arms, size)
        return np.where(self.rng.random(size) < self.epsilon, explored, greedy)

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
    """Takes the arms in turn; remembers what it was told."""

    name = "in turn"

    def __init__(self, *, start_at=1):
        self.start_at = start_at
        self.told = []

    def start(self, num_runs, num_arms, rng):
        self.num_runs, self.num_arms = num_runs, num_arms
        self.told.append([])

    def choose(self, step):
        return np.full(self.num_runs, (step - self.start_at) % self.num_arms)

    def update(self, step, arm, reward):
        assert arm.shape == reward.shape == (self.num_runs,)
        self.told[-1].append((step, arm.copy(), reward.copy()))


PLAIN = pytest.mark.filterwarnings("ignore::hotloop.bandits.BanditSpeedWarning")


@PLAIN
@pytest.mark.parametrize("own", ["agent", "environment", "both"])
def test_plain_python_as_good_as_what_it_imitates(own):
    agent = EpsilonGreedy() if own == "environment" else PlainGreedy(0.1)
    where = Gaussian() if own == "agent" else PlainGaussian()
    options = {"num_runs": 6000, "num_steps": 60, "late_steps": 20}
    one, two = run(agent, where, **options), run(EpsilonGreedy(), Gaussian(), **options)
    for name in ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert abs(ours.mean - theirs.mean) < 4.5 * math.hypot(ours.se, theirs.se), name
        assert ours.se == pytest.approx(theirs.se, rel=0.1)


@PLAIN
@pytest.mark.parametrize(
    "where",
    [
        Gaussian(num_arms=4, noise=0.5),
        Bernoulli(means=(0.2, 0.5, 0.8)),
        RandomWalk(num_arms=5),
        AbruptChange(num_arms=3, every=7),
        Adversarial(rewards=np.random.default_rng(0).uniform(0, 1, (40, 3))),
    ],
    ids=lambda where: where.name,
)
def test_a_plain_agent_meets_what_compiled_ones_do(where):
    """The arms in turn, once in plain Python and once compiled: the same rewards."""

    def choose(state, params, step, uniform):
        return (step - 1) % int(params[0])

    def update(state, params, step, arm, reward):
        pass

    compiled = JittedAgent(choose=choose, update=update, state_size=0, params=(where.num_arms,))
    plain = RoundRobin()
    one, other = (run(agent, where, **OPTIONS) for agent in (plain, compiled))
    for name in ("reward", "reward_se", "optimal", "regret", "arm_share"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
    np.testing.assert_allclose(one.final_regrets, other.final_regrets, atol=1e-4)
    steps = [step for step, _, _ in plain.told[0]]
    assert steps == list(range(1, 41))
    told = np.concatenate([np.stack([reward for _, _, reward in runs]) for runs in plain.told], 1)
    np.testing.assert_allclose(told.mean(axis=1), one.reward, atol=1e-5)


@PLAIN
def test_a_plain_environment_meets_compiled_agents():
    class Fixed:
        num_arms = 3

        def start(self, num_runs, rng):
            self.num_runs = num_runs

        def reward(self, step, arm):
            assert arm.shape == (self.num_runs,)
            return np.array([0.25, 1.5, -1.0])[arm]

        def mean(self, step):
            return np.tile([0.25, 1.5, -1.0], (self.num_runs, 1))

    same = Gaussian(means=(0.25, 1.5, -1.0), noise=0.0)
    for agent in (EpsilonGreedy(epsilon=0.3), UCB(), own_greedy(0.3, 3)):
        one, other = run(agent, Fixed(), **OPTIONS), run(agent, same, **OPTIONS)
        for name in ("reward", "optimal", "regret", "arm_share"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-6)


@PLAIN
def test_without_means_there_is_no_regret():
    result = run(EpsilonGreedy(), PlainGaussian(has_mean=False), **OPTIONS)
    assert np.isnan(result.regret).all()
    assert np.isnan(result.optimal).all()
    assert np.isfinite(result.reward).all()


@PLAIN
def test_plain_python_is_repeatable():
    results = [run(PlainGreedy(0.1), PlainGaussian(), **OPTIONS) for _ in range(2)]
    assert results[0].sums.curve.tobytes() == results[1].sums.curve.tobytes()
    other = run(PlainGreedy(0.1), PlainGaussian(), **{**OPTIONS, "seed": 22})
    assert results[0].sums.curve.tobytes() != other.sums.curve.tobytes()


def test_plain_python_says_that_it_is_slower():
    for agent, where in ((PlainGreedy(0.1), Gaussian()), (EpsilonGreedy(), PlainGaussian())):
        with pytest.warns(BanditSpeedWarning, match="Jitted") as caught:
            run(agent, where, num_runs=10, num_steps=5)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(own_greedy(0.1, 10), Gaussian(), num_runs=10, num_steps=5)
        run(EpsilonGreedy(), Gaussian(), num_runs=10, num_steps=5)


# What they must not give.


def wrong_at(step, run_number, wrong, right):
    """Plain choices that are wrong in one run at one step."""

    class Wrong(RoundRobin):
        name = "wrong"

        def choose(self, now):
            arms = np.full(self.num_runs, right)
            if now == step:
                arms[run_number] = wrong
            return arms

    return Wrong()


@pytest.mark.parametrize("arm", [-1, 3, 1000])
def test_compiled_arm_out_of_range(arm):
    def choose(state, params, step, uniform):
        return int(params[0]) if step == 7 else 1

    def update(state, params, step, arm, reward):
        pass

    agent = JittedAgent(choose=choose, update=update, state_size=0, params=(arm,), name="astray")
    with pytest.raises(BanditError, match="astray") as caught:
        run(agent, Gaussian(num_arms=3), num_runs=300, num_steps=10)
    message = str(caught.value)
    assert str(arm) in message
    assert "7" in message
    assert "3" in message or "2" in message  # what would be right
    run(EpsilonGreedy(), Gaussian(num_arms=3), num_runs=10, num_steps=10)  # no fault stays


@PLAIN
@pytest.mark.parametrize("arm", [-1, 3, 1000])
def test_plain_arm_out_of_range(arm):
    with pytest.raises(BanditError, match="wrong") as caught:
        run(wrong_at(7, 5, arm, 1), Gaussian(num_arms=3), num_runs=300, num_steps=10)
    assert str(arm) in str(caught.value)
    assert "7" in str(caught.value)


def broken_reward(state, params, step, arm, uniform):
    return params[0] if step == 5 else 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_compiled_reward_that_is_no_number(value):
    where = JittedEnvironment(num_arms=2, reward=broken_reward, params=(value,), name="broken")
    for agent in (EpsilonGreedy(), own_greedy(0.1, 2)):
        with pytest.raises(BanditError, match="broken") as caught:
            run(agent, where, num_runs=300, num_steps=10)
        assert ("nan" if math.isnan(value) else "inf") in str(caught.value)
        assert "5" in str(caught.value)


def test_only_runs_that_were_asked_for_can_fail():
    """Runs come in blocks; those of a block that nobody asked for are not played, or not heard."""

    def choose(state, params, step, uniform):
        return -1 if uniform[0] < 0.02 else 0

    def update(state, params, step, arm, reward):
        pass

    firsts = [
        Randomness(21, number).uniforms(step, AGENT)[0]
        for number in range(256)
        for step in range(5)
    ]
    assert min(firsts[:5]) >= 0.02 > min(firsts)
    agent = JittedAgent(choose=choose, update=update, state_size=0)
    result = run(agent, Gaussian(num_arms=2), num_runs=1, num_steps=5, seed=21, arm_shares=True)
    np.testing.assert_array_equal(result.arm_share[:, 0], 1.0)


@PLAIN
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_plain_reward_that_is_no_number(value):
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


@PLAIN
def test_plain_answers_of_a_wrong_shape():
    class Scalar(RoundRobin):
        name = "scalar"

        def choose(self, step):
            return 1

    class Fractions(RoundRobin):
        name = "fractions"

        def choose(self, step):
            return np.full(self.num_runs, 0.5)

    class Short(PlainGaussian):
        name = "short"

        def reward(self, step, arm):
            return super().reward(step, arm)[:-1]

    for agent, where, name in (
        (Scalar(), Gaussian(), "scalar"),
        (Fractions(), Gaussian(), "fractions"),
        (EpsilonGreedy(), Short(), "short"),
    ):
        with pytest.raises(BanditError, match=name):
            run(agent, where, num_runs=30, num_steps=5)


def test_differences_between_agents_of_which_each_has_an_environment_for_itself():
    """They met the same random numbers, so run by run they can be told apart."""

    def reward(state, params, step, arm, uniform):
        return 1.0 if uniform[0] < 0.2 + 0.1 * arm else 0.0

    environment = JittedEnvironment(num_arms=3, reward=reward)
    agents = [EpsilonGreedy(epsilon=0.5), EpsilonGreedy(), EpsilonGreedy(epsilon=0.5)]
    settings = {"num_runs": 300, "num_steps": 20}
    comparison = compare(agents, environment, **settings)
    assert tuple(comparison.difference(0, 2)) == (0.0, 0.0)
    paired = comparison.difference(0, 1)
    ends = [comparison.results[which].mean_reward for which in (0, 1)]
    assert paired.mean == pytest.approx(ends[0].mean - ends[1].mean)
    # Every run by itself, from sums over one more run each time.
    means = np.array(
        [
            [
                compare(agents[:2], environment, num_runs=runs, num_steps=20)
                .results[which]
                .sums.totals[0, 0]
                for runs in (1, 2, 3, 4, 5)
            ]
            for which in (0, 1)
        ]
    )
    each = np.diff(means, axis=1, prepend=0)
    by_hand = (each[0] - each[1]).std(ddof=1) / math.sqrt(5)
    five = compare(agents[:2], environment, num_runs=5, num_steps=20)
    assert five.difference(0, 1).se == pytest.approx(by_hand)


@pytest.mark.parametrize("agent", [BetaThompson(), KLUCB(), EXP3()])
def test_rewards_beyond_what_an_agent_takes(agent):
    def reward(state, params, step, arm, uniform):
        return 2.0 * uniform[0]

    environment = JittedEnvironment(num_arms=4, reward=reward)
    run(EpsilonGreedy(), environment, num_runs=2, num_steps=100)
    with pytest.raises(BanditError, match=r"reward 1\..* of run .* from 0 to 1: scale them"):
        run(agent, environment, num_runs=2, num_steps=100)


def nothing(state, params, step, arm, reward):
    pass


def first(state, params, step, uniform):
    return 0


WHERE = ("start", "choose", "update")


def raising_start(state, params):
    if params[0] == 0:
        raise ValueError("no")


def raising_choose(state, params, step, uniform):
    if params[0] == 1 and step == 3:
        raise ValueError("no")
    return 0


def raising_update(state, params, step, arm, reward):
    if params[0] == 2 and step == 7:
        raise ValueError("no")


@pytest.mark.parametrize("where", WHERE)
def test_agent_that_raises(where):
    agent = JittedAgent(
        start=raising_start,
        choose=raising_choose,
        update=raising_update,
        state_size=1,
        params=(WHERE.index(where),),
    )
    step = {"start": 1, "choose": 3, "update": 7}[where]
    with pytest.raises(BanditError, match=f"agent 'own' raised .* at step {step} of run 0;"):
        run(agent, num_runs=3, num_steps=7)
    # And beside an agent of ours.
    with pytest.raises(BanditError, match=f"agent 'own' raised .* at step {step} of run 0;"):
        compare([EpsilonGreedy(), agent], num_runs=3, num_steps=7)


@pytest.mark.parametrize("where", ["start", "reward", "mean"])
def test_environment_that_raises(where):
    def start(state, params, uniform):
        if params[0] == 0:
            raise ValueError("no")

    def reward(state, params, step, arm, uniform):
        if params[0] == 1 and step == 5:
            raise ValueError("no")
        return 1.0

    def mean(state, params, step, arm):
        if params[0] == 2 and arm == 2:
            raise ValueError("no")
        return 1.0

    which = ("start", "reward", "mean").index(where)
    environment = JittedEnvironment(
        num_arms=3, start=start, reward=reward, mean=mean, params=(which,)
    )
    with pytest.raises(BanditError, match="environment 'own' raised an exception at step"):
        run(EpsilonGreedy(), environment, num_runs=3, num_steps=7)


def test_arm_that_is_no_whole_number():
    def half(state, params, step, uniform):
        return 0.5

    agent = JittedAgent(choose=half, update=nothing, state_size=0)
    with pytest.raises(BanditError, match=r"took arm 0\.5 at step 1 of run 0"):
        run(agent, num_runs=3, num_steps=7)


def test_sizes_have_a_limit():
    with pytest.raises(ConfigError, match=r"`num_arms` of own must be .* to 4,096, got 8192"):
        JittedEnvironment(num_arms=8192, reward=first)
    with pytest.raises(ConfigError, match="`state_size` of own must be"):
        JittedAgent(choose=first, update=nothing, state_size=10**13)


def test_warning_names_the_callers_file():
    class Zero:
        def start(self, num_runs, num_arms, rng):
            self.num_runs = num_runs

        def choose(self, step):
            return np.zeros(self.num_runs, int)

        def update(self, step, arm, reward):
            pass

    for play in (run, lambda agent, **settings: compare([agent], **settings)):
        with pytest.warns(BanditSpeedWarning) as caught:
            play(Zero(), num_runs=3, num_steps=2)
        assert caught[0].filename == __file__


def test_plain_errors_name_the_run_of_all_runs():
    class Late:
        def start(self, num_runs, num_arms, rng):
            self.num_runs = num_runs

        def choose(self, step):
            arms = np.zeros(self.num_runs, int)
            if self.num_runs < 2048:
                arms[4] = 99
            return arms

        def update(self, step, arm, reward):
            pass

    with pytest.warns(BanditSpeedWarning), pytest.raises(BanditError, match="of run 2052"):
        run(Late(), num_runs=2058, num_steps=2)
