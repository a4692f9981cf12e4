"""Device environments by id and factory, and the errors where they cannot be made."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np
import pytest
import torch

from hotloop.envs import EnvSpec, make_env, make_vec
from hotloop.envs.device import is_on_device, make_device_vec
from hotloop.errors import ConfigError, EnvironmentFailure, MissingExtraError, UnknownNameError
from tests.envs.device import toys

CPU = torch.device("cpu")
TOYS = "tests.envs.device.toys"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("hotloop:CartPole", True),
        ("gymnax:CartPole-v1", True),
        ("brax:halfcheetah", True),
        ("playground:CheetahRun", True),
        (f"{TOYS}:counting", True),
        (toys.counting, True),
        (functools.partial(toys.counting, length=5), True),
        (toys.Stateful, True),
        ("CartPole-v1", False),
        ("envpool:CartPole-v1", False),
        ("tests.envs.toy:counting", False),
        ("tests.envs.toy:ToyCounting-v0", False),
        ("no_such_module:make", False),
        (lambda num_envs=2, device="cpu": None, False),
        (lambda **kwargs: None, False),
    ],
)
def test_is_on_device(env, expected):
    assert is_on_device(EnvSpec(env)) is expected


def test_factory_with_bound_num_envs_and_device_is_not_on_device():
    assert not is_on_device(EnvSpec(toys.counting, {"num_envs": 2, "device": "cpu"}))


@pytest.mark.parametrize("env", [f"{TOYS}:counting", toys.counting, toys.Stateful])
def test_ways_to_name_device_environments(env):
    envs = make_device_vec(EnvSpec(env, {"length": 1}), 3, CPU)
    assert envs.reset(0).shape == (3, 2)
    assert envs.step(torch.zeros(3, 1)).terminated.all()


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="did you mean 'hotloop:CartPole'"):
        make_device_vec("hotloop:CartPole-v1", 1, CPU)
    with pytest.raises(UnknownNameError, match="hotloop has hotloop:CartPole"):
        make_device_vec("hotloop:QuadrupedOnIce", 1, CPU)


def test_a_device_other_than_the_learners_is_refused():
    with pytest.raises(ConfigError, match="learner's device, cpu, but their tensors are on meta"):
        make_device_vec(toys.elsewhere, 1, CPU)


def test_factory_results_are_checked():
    with pytest.raises(ConfigError, match=r"got a list.*without `num_envs`"):
        make_device_vec(toys.not_environments, 1, CPU)
    with pytest.raises(ConfigError, match="`num_envs` is 2, but the factory makes 1"):
        make_device_vec(lambda num_envs, device: toys.counting(1, device), 2, CPU)
    with pytest.raises(ConfigError, match=r"TypeError.*'lenght'"):
        make_device_vec(EnvSpec(toys.counting, {"lenght": 2}), 1, CPU)

    def raises(num_envs, device):
        raise RuntimeError("no licence")

    with pytest.raises(EnvironmentFailure, match="2 environments on cpu raised RuntimeError: no"):
        make_device_vec(raises, 2, CPU)


@pytest.mark.parametrize(
    ("env", "package"),
    [("gymnax:CartPole-v1", "gymnax"), ("brax:ant", "brax"), ("playground:Go1", "playground")],
)
def test_missing_package_is_named(env, package):
    pytest.importorskip("jax")
    if importlib.util.find_spec(package.replace("playground", "mujoco_playground")):
        pytest.skip(f"{package} is installed")
    with pytest.raises(MissingExtraError, match=rf"'{env}' need.*pip install {package}"):
        make_device_vec(env, 1, CPU)


def test_make_env_refuses_device_environments():
    with pytest.raises(ConfigError, match="no single one"):
        make_env("hotloop:CartPole")


def test_make_vec_wraps_device_environments():
    envs = make_vec(EnvSpec(toys.counting, {"length": 2}, seed=3), 2)
    first = envs.reset()
    assert first.dtype == np.float32
    step = envs.step(np.array([[0.5], [2.0]], np.float32))
    assert step.reward.tolist() == [0.5, 1.0]
    assert step.next_obs[:, 0].tolist() == [1, 1]
    assert envs.running_episodes() == [(0, 1), (0, 1)]
    step = envs.step(np.array([[0.25], [1.0]], np.float32))
    assert step.terminated.all()
    assert step.next_obs[:, 0].tolist() == [2, 2]
    assert step.obs[:, 0].tolist() == [0, 0]
    assert [tuple(episode)[:4] for episode in envs.pop_episodes()] == [
        (0, 0, 0.75, 2),
        (1, 0, 2, 2),
    ]
    assert envs.pop_episodes() == []
    assert envs.running_episodes() == [(1, 0), (1, 0)]
    again = make_vec(EnvSpec(toys.counting, {"length": 2}, seed=3), 2)
    assert again.reset().tolist() == first.tolist()
    assert again.reset().tolist() != first.tolist()
    assert again.reset(first_episode=0).tolist() == first.tolist()


def test_evaluation_stream_has_different_episodes():
    first_obs = [
        make_vec(EnvSpec(toys.counting, seed=3, stream=stream), 2).reset()
        for stream in ("training", "evaluation")
    ]
    assert first_obs[0].tolist() != first_obs[1].tolist()


@pytest.mark.parametrize("options", [{"action_masks": True}, {"log_info": ["x"]}])
def test_options_that_need_info_are_refused(options):
    with pytest.raises(ConfigError, match=f"`{next(iter(options))}` needs `info`"):
        make_vec(EnvSpec(toys.counting, **options), 2)
