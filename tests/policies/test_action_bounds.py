"""Actions lie in their space, in its dtype, in every form of a policy. Tests of bounds."""

import importlib.util
import re
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import hotloop
from hotloop.algorithms import ppo, sac, td3
from hotloop.envs import make_vec
from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.policies import ActingPolicy, PolicySnapshot, TrainedPolicy, actor_critic
from hotloop.policies.export.traced_policy import TracedPolicy
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import HEADS, Categorical, Gaussian, ScaledGaussian
from hotloop.policies.heads.bounded import check_bounded
from hotloop.policies.spec import actor
from hotloop.training.action_metrics import ActionMetrics
from hotloop.types import Fragment
from tests.policies.test_policies import obs_spec

BOXES = [
    Box(0.1, 0.3, (2,), np.float64),
    Box(0.1, 0.3, (2,), np.float32),
    Box(0.1, 0.3, (2,), np.float16),
    Box(np.array([-1.0, 1e-3]), np.array([1 / 3, 0.7]), (2,), np.float64),
    Box(-3, 5, (2,), np.int64),
    Box(0, 255, (2, 2), np.uint8),
    Box(-np.inf, np.inf, (2,), np.float64),
    Box(-np.inf, np.inf, (2,), np.int64),
    Box(-1e300, 1e300, (1,), np.float64),
    Box(0.7, np.inf, (2,), np.float64),
]


def policy_for(space, head=None, gain=3.0):
    """Return a policy whose outputs spread far beyond the bounds."""
    spaces = SimpleNamespace(obs_spec=obs_spec(3), action_spec=ActionDecoder(space).spec)
    network = actor_critic(spaces) if head is None else actor(spaces, HEADS[head]())
    params = network.initial_parameters(0)
    params["policy.2.weight"] = params["policy.2.weight"] * np.float32(100 * gain)
    return ActingPolicy(network, PolicySnapshot(0, params))


def observations(count=20):
    return np.random.default_rng(0).standard_normal((count, 3), np.float32)


def is_bounded(space):
    return max(abs(float(space.low.min())), abs(float(space.high.max()))) < 1e38


CASES = [(None, space) for space in BOXES]
CASES += [
    (head, space)
    for head in ("squashed_gaussian", "deterministic")
    for space in BOXES
    if is_bounded(space)
]


@pytest.mark.parametrize(("head", "space"), CASES, ids=str)
def test_actions_lie_in_their_space(tmp_path, head, space):
    policy, obs = TrainedPolicy(policy_for(space, head)), observations()
    expected = policy.act(obs)
    for action in (expected, policy.act(obs, deterministic=False)):
        assert action.dtype == space.dtype
        assert all(space.contains(row) for row in action)
    policy.to_numpy_file(tmp_path)
    spec = importlib.util.spec_from_file_location("exported_bounds", tmp_path / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported = module.Policy(tmp_path / "policy.npz").act(obs)
    assert exported.dtype == space.dtype
    assert all(space.contains(row) for row in exported)
    with torch.no_grad():
        traced = TracedPolicy(policy.network, policy.snapshot)(torch.from_numpy(obs))[0].numpy()
    assert traced.dtype == space.dtype
    assert all(space.contains(row) for row in traced)
    np.testing.assert_allclose(exported.astype(float), expected.astype(float), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("space", BOXES, ids=str)
def test_environments_receive_actions_in_their_space(space):
    decoder = ActionDecoder(space)
    action = np.random.default_rng(1).standard_normal((9, *space.shape)).astype(np.float32) * 300
    rows = decoder.rows(action)
    assert all(space.contains(row) and row.dtype == space.dtype for row in rows)


def test_integer_actions_are_rounded():
    decoder = ActionDecoder(Box(0, 5, (3,), np.int32))
    np.testing.assert_array_equal(decoder.batch(np.float32([[0.4, 2.6, 9.0]])), [[0, 3, 5]])


def test_policies_of_older_versions_round_bounds_inwards():
    spec = ActionSpec(kind="box", shape=(1,), dtype="float32", low=(0.1,), high=(0.3,))
    (high,) = spec.decode(np.float32([9.0]))
    (low,) = spec.decode(np.float32([-9.0]))
    assert high.dtype == np.float32
    assert 0.1 <= float(low) < float(high) <= 0.3
    assert float(np.nextafter(high, np.float32(1))) > 0.3
    restored = ActionSpec.from_json({**spec.to_json(), "space_dtype": "float64"})
    assert restored.decode(np.float32([9.0])) == [0.3]


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1.0), (1.0, -1.0), (0.0, np.nan)])
def test_bounds_without_an_order_are_refused(low, high):
    space = Box(-1, 1, (1,), np.float32)
    space.low[:], space.high[:] = low, high
    with pytest.raises(SpaceError, match="lower bounds of actions must not exceed the upper ones"):
        ActionDecoder(space)


# --- distant bounds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "is_scaled"),
    [
        (-1, 1, False),
        (-0.4, 0.4, False),
        (-3, 3, False),
        (0, 1, False),
        (0, 1000, True),
        (10, 20, True),
        (-0.001, 0.001, True),
        (2, 3, True),
        (0, np.inf, False),
        (-1e300, 1e300, False),
        (2, 2, False),
    ],
)
def test_only_bounds_far_from_one_are_scaled(low, high, is_scaled):
    network = policy_for(Box(low, high, (1,), np.float64)).network
    assert network.head == (ScaledGaussian() if is_scaled else Gaussian())


def test_scaled_actions_and_densities_are_those_of_the_unit_gaussian():
    space = Box(np.array([0, -1, 0]), np.array([1000, 1, np.inf]), (3,), np.float64)
    policy, obs = policy_for(space, gain=0.001), observations(7)
    center, half = np.float32([500, 0, 0]), np.float32([500, 1, 1])
    head = policy.head(obs)
    noise = policy.draw_noise(1, first_step=0, num_steps=1, num_envs=7)[0]
    action = np.empty((7, 3), np.float32)
    policy.choose(head, noise, action)
    std = np.exp(policy.snapshot.params["policy.log_std"])
    np.testing.assert_allclose(action, center + half * (head + std * noise), rtol=1e-5)
    expected = -(0.5 * noise**2 + np.log(std) + 0.5 * np.log(2 * np.pi)).sum(1)
    np.testing.assert_allclose(policy.log_prob(head, noise, action), expected, rtol=1e-5)
    np.testing.assert_allclose(policy.greedy(obs), center + half * head, rtol=1e-5)
    # The twin in torch.
    nets = LearnedNetwork(policy.network)
    params = nets.layout.pack(policy.snapshot.params, "cpu")
    log_prob, *_ = nets.evaluate(params, torch.from_numpy(obs), torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3)
    drawn, log_prob, _ = nets.draw(params, torch.from_numpy(obs), torch.from_numpy(noise))
    np.testing.assert_allclose(drawn, action, rtol=1e-5)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3)


def test_start_of_a_run_names_scaled_and_infinite_bounds():
    describe = [policy_for(space).network.describe_interface() for space in (BOXES[0], BOXES[8])]
    assert describe == [
        "actions: 2 of 2 numbers are scaled from −1 … 1 to their bounds, such as 0.1 … 0.3",
        "actions: bounds beyond ±1e+15 count as infinite",
    ]


class Reach(gymnasium.Env):
    """One step: the reward is the negative distance to 0.7 of the range."""

    observation_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, low=0.0, high=1000.0, dtype="float64"):
        self.action_space = Box(low, high, (1,), np.dtype(dtype).type)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        low, high = float(self.action_space.low[0]), float(self.action_space.high[0])
        share = (float(action[0]) - low) / (high - low)
        return np.ones(1, np.float32), -abs(share - 0.7), True, False, {}


def test_ppo_reaches_the_middle_of_distant_bounds_and_logs_the_spread(tmp_path):
    reports = []
    config = ppo.Config(
        num_envs=8,
        num_steps=32,
        total_timesteps=6_000,
        hidden_sizes=(8,),
        execution="eager",
        run_dir=str(tmp_path / "run"),
    )
    ppo.train(config, env=Reach, progress=False, on_report=reports.append)
    action = hotloop.load(tmp_path / "run").act(np.ones(1, np.float32))
    assert action.dtype == np.float64
    assert 550 < action[0] < 850
    metrics = [report.metrics for report in reports[1:]]
    assert 0.5 < metrics[0]["policy_std"] < 1.2
    assert 0.2 < metrics[0]["clipped_actions"] < 0.45  # P(|N(0, 1)| > 1) = 0.32


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_of_actions_and_warning_about_an_exploding_spread():
    policy = policy_for(Box(-1, 1, (2,), np.float32))
    metrics = ActionMetrics(policy.network)
    params = {"policy.log_std": np.log(np.float32([0.5, 1.5]))}
    action = np.float32([[[0.5, -2.0], [1.5, 9.0]]])
    fragment = Fragment.allocate(
        1, 2, obs_shape=(3,), obs_dtype="float32", action_shape=(2,), action_dtype="float32"
    )
    ones = torch.ones((1, 2), dtype=torch.bool)
    tensors = replace(fragment, action=torch.from_numpy(action), valid=ones)
    fragment.action[...], fragment.valid[...] = action, [[True, False]]
    assert metrics([fragment], params) == pytest.approx({"policy_std": 1.0, "clipped_actions": 0.5})
    assert metrics([tensors], params)["clipped_actions"] == 0.75
    with pytest.warns(UserWarning, match=r"grew to 8e\+12, .* lower `entropy_coef`"):
        metrics([fragment], {"policy.log_std": np.log(np.float32([8e12, 8e12]))})
    unbounded = ActionMetrics(policy_for(Box(-np.inf, np.inf, (2,), np.float32)).network)
    assert list(unbounded([fragment], params)) == ["policy_std"]
    discrete = SimpleNamespace(head=Categorical(), action_spec=SimpleNamespace(low=(), high=()))
    assert ActionMetrics(discrete)([fragment], {}) == {}


# --- bounds for tanh ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [sac, td3], ids=["sac", "td3"])
@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (0, np.inf), (-1e300, 1e300), (-1e308, 1e308)]
)
def test_advice_about_infinite_bounds_works_literally(low, high, algorithm):
    env = Reach(low, high)
    with pytest.raises(SpaceError, match=re.escape(f"got [{float(low)}] to [{float(high)}]")) as e:
        algorithm.algorithm.networks(algorithm.Config(), make_vec(lambda: env, 1), "cpu")
    (advice,) = re.findall(r"`(gymnasium\..*\))`", str(e.value))
    wrapped = eval(advice, {"gymnasium": gymnasium, "env": env})
    algorithm.algorithm.networks(algorithm.Config(), make_vec(lambda: wrapped, 1), "cpu")
    assert wrapped.action_space == Box(-1.0, 1.0, (1,))


def test_bounds_that_coincide_in_float32_are_refused():
    spec = ActionDecoder(Box(1e9, 1e9 + 1, (1,), np.float64)).spec
    with pytest.raises(SpaceError, match="greater than the lower one, as float32 numbers"):
        check_bounded(spec)


def test_advice_about_bounds_that_coincide_works_literally():
    env = Reach(1e9, 1e9 + 1)
    with pytest.raises(SpaceError, match="different float32 numbers, got") as error:
        policy_for(env.action_space)
    (advice,) = re.findall(r"`(gymnasium\..*\))`", str(error.value))
    wrapped = eval(advice, {"gymnasium": gymnasium, "env": env})
    assert wrapped.action_space == Box(-1.0, 1.0, (1,), np.float64)
    TrainedPolicy(policy_for(wrapped.action_space)).act(observations())
