"""Bytes as numbers for perceptrons: training, replay, workers, files and the user's choice."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

import hotloop
from hotloop import evaluate
from hotloop.algorithms import dqn, ppo, sac
from hotloop.envs import EnvSpec
from hotloop.errors import SpaceError
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.training.learners import make_normalizer

OPTIONS = {
    ppo: {"num_steps": 16, "update_epochs": 1, "num_minibatches": 1, "total_timesteps": 64},
    dqn: {"learning_starts": 32, "batch_size": 16, "buffer_size": 200, "total_timesteps": 64},
}


class Board(gym.Env):
    """A board of codes: the action that names the code on it is right."""

    action_space = spaces.Discrete(3)

    def __init__(self, high=3, shape=(10, 10), is_dict=False):
        board = spaces.Box(0, high, shape, np.uint8)
        self.board, self.is_dict = board, is_dict
        self.observation_space = (
            spaces.Dict(board=board, speed=spaces.Box(-1, 1, (2,), np.float32))
            if is_dict
            else board
        )

    def observation(self, code):
        board = np.zeros(self.board.shape, np.uint8)
        board.flat[0] = code
        return {"board": board, "speed": np.zeros(2, np.float32)} if self.is_dict else board

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.code = int(self.np_random.integers(1, 4))
        return self.observation(self.code), {}

    def step(self, action):
        return self.observation(0), float(action + 1 == self.code), True, False, {}


def train(algorithm, tmp_path, **options):
    config = algorithm.Config(
        num_envs=2,
        hidden_sizes=(8,),
        execution="eager",
        run_dir=str(tmp_path / "run"),
        **{**OPTIONS[algorithm], **options},
    )
    return algorithm.train(config, env=Board, progress=False)


@pytest.mark.parametrize("algorithm", [ppo, dqn], ids=["ppo", "dqn"])
def test_boards_are_scaled_by_their_bounds_in_every_form_of_the_policy(tmp_path, algorithm):
    kwargs = {"high": 4}
    result = train(algorithm, tmp_path, env_kwargs=kwargs)
    policy = result.policy
    assert policy.network.encoder == "flatten"
    assert (policy.snapshot.obs_scale.std == 4.0).all()
    assert (policy.snapshot.obs_scale.mean == 0.0).all()
    obs = np.random.default_rng(0).integers(0, 5, (6, 10, 10), np.uint8)
    unscaled = PolicySnapshot(0, policy.snapshot.params)
    other = ActingPolicy(policy.network, unscaled)
    expected = other.head(obs.astype(np.float32) / 4.0)
    np.testing.assert_allclose(policy.head(obs), expected, rtol=1e-6)
    loaded = hotloop.load(result.run_dir)
    np.testing.assert_array_equal(loaded.head(obs), policy.head(obs))
    policy.to_numpy_file(tmp_path)
    spec = importlib.util.spec_from_file_location("exported_board", tmp_path / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported = module.Policy(tmp_path / "policy.npz")
    np.testing.assert_allclose(exported.head(obs), policy.head(obs), rtol=1e-5, atol=1e-6)
    evaluation = evaluate(result.run_dir, env=EnvSpec(Board, kwargs), episodes=2)
    assert len(evaluation.returns) == 2


def test_board_in_a_dict_is_scaled_and_the_speed_is_not(tmp_path):
    policy = train(ppo, tmp_path, env_kwargs={"is_dict": True}).policy
    np.testing.assert_array_equal(policy.snapshot.obs_scale.std, [3.0] * 100 + [1.0] * 2)


def test_named_encoder_takes_boards_and_boards_in_dicts(tmp_path):
    flat = train(ppo, tmp_path / "a", network="impala")
    assert flat.policy.snapshot.obs_scale is None  # the encoder scales
    board = train(ppo, tmp_path / "b", network="impala", env_kwargs={"is_dict": True})
    assert board.policy.network.encoder == "impala"
    obs = {"board": np.full((10, 10), 3, np.uint8), "speed": np.zeros(2, np.float32)}
    assert hotloop.load(board.run_dir).act(obs) in range(3)


def test_images_may_be_read_by_a_perceptron(tmp_path):
    policy = train(ppo, tmp_path, env_kwargs={"high": 255}, network="perceptron").policy
    assert (policy.snapshot.obs_scale.std == 255.0).all()


def test_normalized_boards_are_not_scaled_twice(tmp_path):
    policy = train(ppo, tmp_path, normalize_obs=True).policy
    assert policy.snapshot.obs_scale.clip == 10.0
    assert policy.snapshot.obs_scale.std.reshape(-1)[1] == 1.0  # a field that is always empty


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"normalize_obs": True}, 10.0),
        ({"normalize_obs": True, "clip_obs": None}, np.inf),
        ({"normalize_obs": True, "clip_obs": 3.0}, 3.0),
        ({"clip_obs": 3.0}, 3.0),
        ({}, None),
    ],
)
def test_bound_of_observations(options, bound):
    envs = hotloop.make_vec("CartPole-v1", 2)
    config = ppo.Config(**options)
    nets = ppo.algorithm.networks(config, envs, "cpu")
    scale = make_normalizer(config, nets, 2, gamma=0.9).obs_scale
    assert (None if scale is None else scale.clip) == bound


def test_start_of_a_run_describes_the_choice(tmp_path):
    reports = []
    config = ppo.Config(
        num_envs=2, run_dir=str(tmp_path / "run"), execution="eager", **OPTIONS[ppo]
    )
    ppo.train(config, env=Board, progress=False, on_report=reports.append)
    assert reports[0].interface.startswith(
        "byte observations: (10, 10) is numbers for a perceptron, scaled by its bounds 0 … 3"
    )


class Steering(Board):
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        return self.observation(0), float(action[0]), True, False, {}


@pytest.mark.parametrize("network", [None, "perceptron", "impala"])
def test_critics_of_continuous_actions_read_images_only_as_numbers(tmp_path, network):
    options = {"env_kwargs": {"high": 255}, "network": network, "run_dir": str(tmp_path / "run")}
    options |= {**OPTIONS[dqn], "hidden_sizes": (8,), "execution": "eager", "num_envs": 2}
    if network == "perceptron":
        policy = sac.train(sac.Config(**options), env=Steering, progress=False).policy
        assert (policy.snapshot.obs_scale.std == 255.0).all()
        return
    with pytest.raises(SpaceError, match="choose `network` 'perceptron' to read them as numbers"):
        sac.train(sac.Config(**options), env=Steering, progress=False)


def test_flattened_boards_may_have_action_masks():
    class Masked(Board):
        def reset(self, *, seed=None, options=None):
            obs, _ = super().reset(seed=seed)
            return obs, {"action_mask": np.array([1, 0, 1], np.int8)}

        def step(self, action):
            return *super().step(action)[:4], {"action_mask": np.array([1, 0, 1], np.int8)}

    envs = hotloop.make_vec(EnvSpec(lambda: FlattenObservation(Masked()), action_masks=True), 2)
    spec = envs.obs_spec
    assert (spec.dtype, spec.shape, envs.action_spec.mask_size) == ("uint8", (100,), 3)
    assert envs.reset()[:, 0].min() >= 1
    np.testing.assert_array_equal(envs.mask, [[True, False, True]] * 2)
    assert (spec.byte_scale()[1] == 3.0).all()
