import math
from dataclasses import replace

import numpy as np
import pytest

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    actor_critic,
)
from hotloop.policies.heads import HEADS
from hotloop.policies.heads.bounded import bounded_log_std
from tests.policies.nets import Spaces
from tests.policies.test_actors import BOUNDED, make_actor
from tests.policies.test_policies import BOX, DISCRETE, FAR_BOX, HYBRID, MULTI, obs_spec

LOW, HIGH = np.float32(BOUNDED.low), np.float32(BOUNDED.high)
CENTRE, HALF = np.float32([0.0, 2.5]), np.float32([0.5, 1.5])


def linear_network(action_spec):
    return actor_critic(Spaces(obs_spec(4), action_spec), hidden_sizes=())


CASES = {
    "categorical": (linear_network(DISCRETE), None),
    "multi_categorical": (linear_network(MULTI), None),
    "gaussian": (linear_network(BOX), None),
    "scaled_gaussian": (linear_network(FAR_BOX), None),
    "squashed_gaussian": (make_actor("squashed_gaussian"), Exploration(random_steps=13)),
    "deterministic": (
        make_actor("deterministic"),
        GaussianNoise(random_steps=13, std=0.2),
    ),
    "greedy": (
        make_actor("greedy"),
        EpsilonGreedy(random_steps=3, start=0.9, end=0.1, num_steps=25),
    ),
    "hybrid": (linear_network(HYBRID), None),
    **{
        kind: (make_actor(kind), EpsilonGreedy(start=0.9, end=0.1, num_steps=25))
        for kind in ("dueling", "return_distribution", "dueling_return_distribution")
    },
}


def make_policy(network, exploration=None):
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    return ActingPolicy(network, snapshot, exploration=exploration)


def test_cases_cover_all_heads():
    assert CASES.keys() == HEADS.keys()


@pytest.mark.parametrize("name", CASES)
def test_noise_depends_only_on_seed_step_and_environment(name):
    """Block size and number of environments do not matter."""
    network, exploration = CASES[name]
    head = make_policy(network, exploration)
    assert type(network.head) is HEADS[name]
    whole = head.draw_noise(5, first_step=0, num_steps=40, num_envs=3)
    assert whole.dtype == np.float32
    for block in (1, 8, 20):
        parts = [
            head.draw_noise(5, first_step=first, num_steps=block, num_envs=3)
            for first in range(0, 40, block)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    single = head.draw_noise(5, first_step=10, num_steps=20, num_envs=1)
    np.testing.assert_array_equal(single, whole[10:30, :1])
    for other in (
        head.draw_noise(6, first_step=0, num_steps=40, num_envs=3),
        head.draw_noise(5, first_step=40, num_steps=40, num_envs=3),
        whole[:, ::-1],
    ):
        assert not np.array_equal(other, whole)


def choose_actions(network, outputs, noise, exploration=None):
    """Return the actions of every step and environment, (T, N, *action_shape)."""
    policy = make_policy(network, exploration)
    num_steps, num_envs = noise.shape[:2]
    spec = network.action_spec
    actions = np.empty((num_steps, num_envs, *spec.shape), spec.dtype)
    all_outputs = np.broadcast_to(np.float32(outputs), (num_envs, network.head_size))
    for t in range(num_steps):
        policy.choose(all_outputs, noise[t], actions[t])
    return actions


def is_uniform(unit, num_bins=10):
    """Whether χ² of numbers in [0, 1) is below its mean plus four standard deviations."""
    counts = np.bincount((unit.ravel() * num_bins).astype(int), minlength=num_bins)
    assert len(counts) == num_bins
    expected = unit.size / num_bins
    chi2 = (np.square(counts - expected) / expected).sum()
    return chi2 < (num_bins - 1) + 4 * math.sqrt(2 * (num_bins - 1))


@pytest.mark.parametrize(
    ("kind", "exploration"),
    [
        ("squashed_gaussian", Exploration(random_steps=4)),
        ("deterministic", GaussianNoise(random_steps=4, std=0.1)),
    ],
)
def test_first_actions_are_uniform_within_the_bounds(kind, exploration):
    network = make_actor(kind)
    head = make_policy(network, exploration)
    noise = head.draw_noise(1, first_step=0, num_steps=6, num_envs=5_000)
    # Only the steps after the uniform ones follow this extreme head.
    actions = choose_actions(network, [50.0] * network.head_size, noise, exploration)[..., 0]
    uniform, acted = actions[:4], actions[4:]
    assert (uniform >= LOW).all()
    assert (uniform <= HIGH).all()
    unit = (uniform - LOW) / (HIGH - LOW)
    assert is_uniform(unit[..., 0])
    assert is_uniform(unit[..., 1])
    correlation = np.corrcoef(unit.reshape(-1, 2).T)[0, 1]
    assert abs(correlation) < 4 / math.sqrt(20_000)
    # Two steps of an environment are independent.
    assert abs(np.corrcoef(unit[0, :, 0], unit[1, :, 0])[0, 1]) < 4 / math.sqrt(5_000)
    assert (acted > CENTRE + 0.3 * HALF).all()
    np.testing.assert_array_equal(noise[:4, :, -1], 1.0)
    np.testing.assert_array_equal(noise[4:, :, -1], 0.0)


def test_random_steps_count_from_the_first_step_of_the_run():
    head = make_policy(make_actor("deterministic"), Exploration(random_steps=10))
    flags = head.draw_noise(1, first_step=7, num_steps=6, num_envs=2)[..., -1]
    np.testing.assert_array_equal(flags, [[1, 1]] * 3 + [[0, 0]] * 3)
    assert not head.draw_noise(1, first_step=10, num_steps=6, num_envs=2)[..., -1].any()
    assert head.draw_noise(1, first_step=0, num_steps=10, num_envs=2)[..., -1].all()


def test_squashed_gaussian_has_its_mean_and_std():
    """Before tanh the actions have the mean and the standard deviation of the head."""
    network = make_actor("squashed_gaussian")
    mean, raw = np.float32([0.3, -0.6]), np.float32([0.2, -0.1])
    noise = network.head.draw_noise(3, first_step=0, num_steps=1, num_envs=40_000)
    actions = choose_actions(network, np.concatenate([mean, raw]), noise)[0, :, :, 0]
    assert (actions > LOW).all()
    assert (actions < HIGH).all()
    before = np.arctanh((actions.astype(np.float64) - CENTRE) / HALF)
    # log σ = −1.5 + 3.5 tanh(raw) lies in −5 … 2.
    std = np.exp(-1.5 + 3.5 * np.tanh(raw))
    np.testing.assert_allclose(bounded_log_std(raw), np.log(std), rtol=1e-5)
    np.testing.assert_allclose(before.mean(0), mean, atol=4 * std.max() / 200)
    np.testing.assert_allclose(before.std(0), std, rtol=4 / math.sqrt(2 * 40_000))
    standard = (before - mean) / std
    assert is_uniform(np.vectorize(math.erf)(standard / math.sqrt(2)) * 0.5 + 0.5)


@pytest.mark.parametrize(("raw", "log_std"), [(-50.0, -5.0), (0.0, -1.5), (50.0, 2.0)])
def test_standard_deviation_is_bounded(raw, log_std):
    assert bounded_log_std(np.float32([raw])).tolist() == [log_std]


@pytest.mark.parametrize("far", [-40.0, 40.0])
@pytest.mark.parametrize(
    ("kind", "exploration"),
    [("squashed_gaussian", Exploration()), ("deterministic", GaussianNoise(std=5.0))],
)
def test_actions_stay_within_their_bounds(kind, exploration, far):
    low, high = (0.1, -7.3), (0.7, -0.1)  # not representable in float32
    action_spec = ActionSpec(kind="box", shape=(2,), dtype="float32", low=low, high=high)
    network = actor(Spaces(obs_spec(4), action_spec), HEADS[kind]())
    noise = make_policy(network, exploration).draw_noise(2, first_step=0, num_steps=2, num_envs=500)
    actions = choose_actions(network, [far] * network.head_size, noise, exploration)
    assert (actions >= np.float32(low)).all()
    assert (actions <= np.float32(high)).all()
    reached = np.float32(low if far < 0 else high)
    assert np.isclose(actions, reached, rtol=1e-5).any(axis=(0, 1)).all()


def test_deterministic_actor_explores_with_gaussian_noise():
    network, exploration = make_actor("deterministic"), GaussianNoise(std=0.1)
    policy = make_policy(network, exploration)
    noise = policy.draw_noise(3, first_step=0, num_steps=1, num_envs=40_000)
    actions = choose_actions(network, [0.2, -0.3], noise, exploration)[0, :, :, 0]
    mean = CENTRE + HALF * np.tanh([0.2, -0.3])
    std = 0.1 * HALF  # in units of half the bounds' width
    np.testing.assert_allclose(actions.mean(0), mean, atol=4 * std.max() / 200)
    np.testing.assert_allclose(actions.std(0), std, rtol=4 / math.sqrt(2 * 40_000))
    noiseless = choose_actions(network, [0.2, -0.3], np.zeros((1, 40_000, 2)))[0, :, :, 0]
    np.testing.assert_allclose(noiseless, np.broadcast_to(mean, noiseless.shape), rtol=1e-6)


def test_epsilon_decreases_linearly():
    """ε is the start at the first step, the mean of both halfway, and then stays at the end."""
    head = make_policy(make_actor("greedy"), EpsilonGreedy(start=0.8, end=0.2, num_steps=100))
    for step, epsilon in ((0, 0.8), (50, 0.5), (75, 0.35), (100, 0.2), (10**6, 0.2)):
        noise = head.draw_noise(4, first_step=step, num_steps=1, num_envs=20_000)[0, :, 0]
        explored = noise[noise >= 0]
        error = 4 * math.sqrt(epsilon * (1 - epsilon) / 20_000)
        np.testing.assert_allclose(len(explored) / 20_000, epsilon, atol=error)
        # The explored action is independent of the decision to explore.
        shares = np.bincount(explored.astype(int), minlength=3) / len(explored)
        np.testing.assert_allclose(shares, 1 / 3, atol=4 * 0.48 / math.sqrt(len(explored)))
        assert set(noise.tolist()) == {-1.0, 0.0, 1.0, 2.0}


def test_epsilon_does_not_depend_on_num_envs():
    """Steps are counted per environment."""
    head = make_policy(make_actor("greedy"), EpsilonGreedy(start=1.0, end=0.0, num_steps=10))
    for num_envs in (1, 8):
        noise = head.draw_noise(0, first_step=0, num_steps=30, num_envs=num_envs)
        assert (noise[0, :, 0] >= 0).all()
        assert (noise[10:, :, 0] == -1).all()
        assert noise[:, :, 1].sum(axis=1).tolist() == [num_envs] + [0] * 29


def test_random_steps_of_action_values():
    head = make_policy(make_actor("greedy"), EpsilonGreedy(random_steps=5, start=0.0, end=0.0))
    noise = head.draw_noise(4, first_step=2, num_steps=8, num_envs=50)[..., 0]
    assert (noise[:3] >= 0).all()
    assert (noise[3:] == -1).all()


def test_epsilon_greedy_takes_the_best_action_unless_it_explores():
    network = make_actor("greedy")
    values = np.float32([[0.0, 3.0, 1.0], [2.0, -1.0, 0.0], [0.0, 0.0, 5.0], [7.0, 7.0, 0.0]])
    head = make_policy(network, EpsilonGreedy(start=0.5, end=0.5))
    action = np.empty(4, np.int64)
    noise = np.float32([[-1, 0], [1, 0], [0, 0], [-1, 0]])
    head.choose(values, noise, action)
    assert action.tolist() == [1, 1, 0, 0]
    network.head.greedy(values, action)
    assert action.tolist() == [1, 0, 2, 0]
    for k in range(4):  # each environment alone
        single_action = np.empty(1, np.int64)
        head.choose(values[k : k + 1], noise[k : k + 1], single_action)
        assert single_action[0] == [1, 1, 0, 0][k]


def noise_for(kind, which, num_envs):
    """Return the noise of a step in which all environments, none or only the first explore."""
    is_exploring = np.array({"all": [True], "none": [False], "first": [True] + [False] * 9}[which])
    is_exploring = np.resize(is_exploring, num_envs)
    if kind == "greedy":
        noise = np.zeros((num_envs, 2), np.float32)
        noise[:, 0] = np.where(is_exploring, 1.0, -1.0)
        noise[:, 1] = is_exploring.all() and num_envs > 1
        return noise
    noise = np.full((num_envs, 3), 0.25, np.float32)
    noise[:, -1] = is_exploring
    return noise


@pytest.mark.parametrize(
    ("kind", "which", "num_envs", "is_needed"),
    [
        ("greedy", "all", 1, False),
        ("greedy", "all", 3, False),
        ("greedy", "none", 1, True),
        ("greedy", "none", 3, True),
        ("greedy", "first", 3, True),
        ("deterministic", "all", 1, False),
        ("deterministic", "all", 3, False),
        ("deterministic", "none", 3, True),
        ("squashed_gaussian", "all", 3, False),
        ("squashed_gaussian", "none", 1, True),
    ],
)
def test_network_is_needed_where_it_changes_actions(kind, which, num_envs, is_needed):
    """Outputs change the actions exactly where the head needs them."""
    network = make_actor(kind)
    head = make_policy(network, CASES[kind][1])
    noise = noise_for(kind, which, num_envs)
    assert bool(head.needs_head(noise)) is is_needed
    spec = network.action_spec
    actions = []
    for values in ([0.9] * network.head_size, [-0.9] * network.head_size):
        values[-1] = 0.0  # so the last one is or is not the greatest
        action = np.empty((num_envs, *spec.shape), spec.dtype)
        head.choose(np.tile(np.float32(values), (num_envs, 1)), noise, action)
        actions.append(action)
    assert np.array_equal(*actions) is not is_needed


@pytest.mark.parametrize("name", ["squashed_gaussian", "deterministic", "greedy"])
def test_skipping_the_network_does_not_change_actions(name):
    """Compare `draw`, which skips the network where it can, with `head` and `choose`."""
    network, exploration = CASES[name]
    policy = make_policy(network, exploration)
    spec, generator = network.action_spec, np.random.default_rng(0)
    for num_envs in (1, 3):
        noise = policy.draw_noise(0, first_step=0, num_steps=40, num_envs=num_envs)
        head = np.full((num_envs, network.head_size), 9.0, np.float32)
        actual = np.empty((num_envs, *spec.shape), spec.dtype)
        expected = np.empty_like(actual)
        num_skipped = 0
        for t in range(40):
            obs = generator.standard_normal((num_envs, 2, 3)).astype(np.float32)
            before = head.copy()
            policy.draw(obs, noise[t], head, actual)
            num_skipped += np.array_equal(head, before)
            policy.choose(policy.head(obs), noise[t], expected)
            np.testing.assert_array_equal(actual, expected)
        expected_skips = 13
        if name == "greedy":  # a single environment may explore at any step
            expected_skips = 3 if num_envs > 1 else int((noise[:, 0, 0] >= 0).sum())
        assert num_skipped == expected_skips
        assert 0 < expected_skips < 40


@pytest.mark.parametrize("kind", ["squashed_gaussian", "deterministic", "greedy", "dueling"])
def test_act_returns_the_most_probable_action(kind):
    network = make_actor(kind)
    policy = ActingPolicy(
        network,
        PolicySnapshot(0, network.initial_parameters(0)),
        exploration=replace(CASES[kind][1], random_steps=10**9),
    )
    obs = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)
    head = policy.head(obs)
    if kind in ("greedy", "dueling"):
        expected = DISCRETE.start + head.argmax(1)
        assert len(set(expected.tolist())) > 1
    else:
        expected = (CENTRE + HALF * np.tanh(head[:, :2]))[..., None]
    trained = TrainedPolicy(policy)
    actual = trained.act(obs)
    assert actual.dtype == network.action_spec.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_array_equal(trained.act(obs[0]), trained.act(obs[:1])[0])
    with pytest.raises(ConfigError, match="has no value function: call `head`"):
        trained.value(obs)
    with pytest.raises(ConfigError, match="computes no log-probabilities of a fragment"):
        policy.log_prob(head, head, actual)


def test_act_samples_a_squashed_gaussian():
    """Samples use the given generator, without uniform steps and exploration."""
    network = make_actor("squashed_gaussian")
    acting = ActingPolicy(
        network,
        PolicySnapshot(0, network.initial_parameters(0)),
        exploration=Exploration(random_steps=10**9),
    )
    policy = TrainedPolicy(acting)
    obs = np.repeat(np.random.default_rng(0).standard_normal((1, 2, 3)), 20_000, axis=0)
    actions = policy.act(obs, deterministic=False, rng=np.random.default_rng(1))[:, :, 0]
    again = policy.act(obs, deterministic=False, rng=np.random.default_rng(1))[:, :, 0]
    np.testing.assert_array_equal(actions, again)
    mean, raw = np.split(policy.head(obs[:1])[0].astype(np.float64), 2)
    std = np.exp(-1.5 + 3.5 * np.tanh(raw))
    before = np.arctanh((actions.astype(np.float64) - CENTRE) / HALF)
    np.testing.assert_allclose(before.mean(0), mean, atol=4 * std.max() / math.sqrt(20_000))
    np.testing.assert_allclose(before.std(0), std, rtol=4 / math.sqrt(2 * 20_000))


@pytest.mark.parametrize("kind", ["deterministic", "greedy"])
def test_sampling_from_deterministic_heads_changes_nothing(kind):
    network = make_actor(kind)
    acting = ActingPolicy(
        network,
        PolicySnapshot(0, network.initial_parameters(0)),
        exploration=replace(CASES[kind][1], random_steps=10**9),
    )
    policy = TrainedPolicy(acting)
    obs = np.random.default_rng(0).standard_normal((30, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs, deterministic=False), policy.act(obs))
    single = policy.act(obs[0], deterministic=False)
    np.testing.assert_array_equal(single, policy.act(obs[0]))
