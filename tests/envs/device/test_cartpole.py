"""CartPole in torch, compared with Gymnasium's step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.device import make_device_vec
from hotloop.envs.device.cartpole import CartPole
from hotloop.errors import ConfigError

CPU = torch.device("cpu")


def test_spaces_match_gymnasiums():
    envs, gymnasium_envs = make_device_vec("hotloop:CartPole", 2, CPU), make_vec("CartPole-v1", 2)
    assert envs.action_spec == gymnasium_envs.action_spec
    assert envs.obs_spec == gymnasium_envs.obs_spec


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("seed", range(3))
def test_steps_match_gymnasiums(seed, device):
    gymnasium_env, cartpole = gymnasium.make("CartPole-v1").unwrapped, CartPole()
    tolerance = {"rtol": 1e-5, "atol": 1e-6 if device == "cpu" else 1e-5}
    rng, num_ends = np.random.default_rng(seed), 0
    gymnasium_env.reset(seed=seed)
    for _ in range(300):
        motion = torch.tensor(np.array([gymnasium_env.state]), dtype=torch.float32, device=device)
        action = int(rng.integers(2))
        obs, reward, terminated, _, _ = gymnasium_env.step(action)
        next_state, cartpole_reward, cartpole_terminated = cartpole.step(
            {"motion": motion}, torch.tensor([action], device=device)
        )
        np.testing.assert_allclose(
            cartpole.observation(next_state)[0].cpu().numpy(), obs, **tolerance
        )
        assert cartpole_reward.tolist() == [reward]
        assert cartpole_terminated.tolist() == [terminated]
        if terminated:
            num_ends += 1
            gymnasium_env.reset()
    assert num_ends > 3


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_limits_match_gymnasiums(index, sign):
    limit = (2.4, None, 12 * 2 * np.pi / 360)[index]
    for is_inside in (True, False):
        motion = torch.zeros(1, 4)
        motion[0, index] = sign * limit * (0.999 if is_inside else 1.001)
        _, _, terminated = CartPole().step({"motion": motion}, torch.tensor([1]))
        assert terminated.item() is not is_inside


def test_first_states_are_within_their_bounds():
    obs = make_device_vec("hotloop:CartPole", 1000, CPU).reset(1)
    assert -0.05 < obs.min() < -0.04
    assert 0.04 < obs.max() < 0.05
    assert obs.mean().abs() < 0.005


def test_an_episode_is_truncated_after_500_steps():
    envs = make_device_vec("hotloop:CartPole", 4, CPU)
    obs = envs.reset(0)
    for t in range(1, 501):
        # A hand-written controller balances the pole.
        step = envs.step((obs[:, 2] + 0.3 * obs[:, 3] > 0).long())
        obs = step.obs
        assert step.truncated.tolist() == [t == 500] * 4
        assert not step.terminated.any()
    assert not torch.equal(step.obs, step.next_obs)
    assert step.obs.abs().max() < 0.05


def test_max_episode_steps():
    envs = make_device_vec(EnvSpec("hotloop:CartPole", {"max_episode_steps": 3}), 1, CPU)
    envs.reset(0)
    assert [envs.step(torch.tensor([0])).truncated.item() for _ in range(4)] == [0, 0, 1, 0]
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        make_device_vec(EnvSpec("hotloop:CartPole", {"max_episode_steps": 0}), 1, CPU)
