"""Acting on device tensors matches acting on the host: actions, log-probabilities and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotloop.envs.device import box_observations
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError
from hotloop.ops.noise import device_seed
from hotloop.policies import ActingPolicy, ObsScale, PolicySnapshot, actor_critic
from hotloop.policies.device_acting import DevicePolicy
from hotloop.policies.forward import LearnedNetwork

SEED, STEP, NUM_STEPS, NUM_ENVS = 11, 40, 3, 6
ACTIONS = [
    ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=5),
    ActionSpec(kind="multi_discrete", shape=(2,), dtype="int64", nvec=(3, 4), starts=(0, 0)),
    ActionSpec(kind="box", shape=(2, 2), dtype="float32", low=(-1.0,) * 4, high=(1.0,) * 4),
    ActionSpec(kind="box", shape=(2,), dtype="float32", low=(10.0, -1.0), high=(30.0, 1.0)),
]


class DeviceSpaces:
    obs_spec = box_observations(4)

    def __init__(self, action_spec):
        self.action_spec = action_spec


def make_policy(action_spec, scale=None, **layers):
    network = actor_critic(DeviceSpaces(action_spec), **layers)
    nets = LearnedNetwork(network)
    params = nets.initial(3) + 0.1
    host = ActingPolicy(network, PolicySnapshot(0, nets.layout.views(params), scale))
    return DevicePolicy(nets, params, host)


def make_scale(seed=0):
    mean, std = np.random.default_rng(seed).random((2, 4)).astype(np.float32)
    return ObsScale(mean, std + 0.1, 1.5)


@pytest.mark.parametrize("action_spec", ACTIONS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("scale", [None, make_scale()], ids=["raw", "scaled"])
def test_draws_match_the_hosts(action_spec, scale):
    policy = make_policy(action_spec, scale)
    obs = np.random.default_rng(1).standard_normal((NUM_ENVS, 4)).astype(np.float32)
    block = {"num_steps": NUM_STEPS, "num_envs": NUM_ENVS}
    key, step = device_seed(SEED, "cpu"), torch.tensor(STEP)
    noise = policy.host.draw_noise(key, first_step=step, **block)
    host_noise = policy.host.draw_noise(SEED, first_step=STEP, **block)
    np.testing.assert_allclose(noise.numpy(), host_noise, atol=1e-4)
    for t in range(NUM_STEPS):
        action, log_prob, value = policy.draw(policy.tensors, torch.from_numpy(obs), noise[t])
        head = policy.host.head(obs)
        expected = np.empty((NUM_ENVS, *action_spec.shape), action_spec.dtype)
        policy.host.choose(head, host_noise[t], expected)
        np.testing.assert_allclose(action.numpy(), expected, atol=1e-4)
        assert str(action.dtype).endswith(action_spec.dtype)
        expected = policy.host.log_prob(head[None], host_noise[t][None], expected[None])[0]
        np.testing.assert_allclose(log_prob.numpy(), expected, atol=1e-3)
        np.testing.assert_allclose(value.numpy(), policy.host.value(obs), atol=1e-5)


def test_values_of_many_steps_match_the_hosts():
    policy = make_policy(ACTIONS[0], make_scale())
    obs = torch.randn(3, NUM_ENVS, 4, generator=torch.Generator().manual_seed(1))
    actual = policy.value(policy.tensors, obs)
    expected = policy.host.value(obs.reshape(-1, 4).numpy()).reshape(3, NUM_ENVS)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)


def test_new_scale_is_written_in_place():
    policy = make_policy(ACTIONS[0], make_scale())
    before, obs = policy.tensors, torch.ones(1, 4)
    policy.load(PolicySnapshot(7, policy.host.snapshot.params, make_scale(5)))
    assert policy.tensors is before
    np.testing.assert_array_equal(policy.scaled(obs).numpy(), make_scale(5).apply(obs.numpy()))
    assert policy.host.version == 7


def test_policy_shares_the_learners_parameters():
    policy = make_policy(ACTIONS[2])
    obs, noise = torch.ones(1, 4), torch.zeros(1, 4)
    before = policy.draw(policy.tensors, obs, noise)[0].clone()
    policy.tensors.params.mul_(2.0)
    assert not torch.equal(policy.draw(policy.tensors, obs, noise)[0], before)


def test_recurrent_networks_are_refused():
    with pytest.raises(ConfigError, match="got one with a memory"):
        make_policy(ACTIONS[0], memory="gru:4")
