"""Noisy layers: their noise, by hand, and who acts with it."""

import json
import math

import numpy as np
import pytest
import torch

from hotloop.errors import ConfigError
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    network_from_json,
)
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Dueling, Greedy
from hotloop.policies.noisy_layers import apply_noise
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec

SPACES = Spaces(obs_spec(4), DISCRETE)


def make_actor(head, **options):
    return actor(SPACES, head, hidden_sizes=(6,), noisy_std=0.5, **options)


def make_params(network, seed=0):
    """Return parameters with noise in all layers."""
    rng = np.random.default_rng(seed)
    params = network.initial_parameters(seed)
    return {**params, "noise": rng.standard_normal(params["noise"].shape, np.float32)}


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_noise_worked_by_hand(make):
    """f(4) = 2, f(−9) = −3, f(1) = 1: the factors of the weight are 2 · −3 and 1 · −3."""
    params = {
        "policy.0.weight": make([[10.0], [20.0]]),
        "policy.0.bias": make([30.0]),
        "policy.0.weight_std": make([[0.5], [0.1]]),
        "policy.0.bias_std": make([0.2]),
        "memory.weight": make([[1.0]]),
        "noise": make([4.0, 1.0, -9.0]),
    }
    plain = apply_noise(params, params["noise"])
    assert plain.keys() == {"policy.0.weight", "policy.0.bias", "memory.weight"}
    np.testing.assert_allclose(plain["policy.0.weight"], [[10.0 - 3.0], [20.0 - 0.3]])
    np.testing.assert_allclose(plain["policy.0.bias"], [30.0 - 0.6])
    means = apply_noise(params, None)
    assert means["policy.0.weight"] is params["policy.0.weight"]


def test_initial_parameters():
    plain = actor(SPACES, Greedy(), hidden_sizes=(6,))
    network = make_actor(Greedy())
    params = network.initial_parameters(3)
    for name, x in plain.initial_parameters(3).items():
        np.testing.assert_array_equal(params.pop(name), x)
    noise = params.pop("noise")
    assert (noise.shape, noise.any()) == ((4 + 6 + 6 + 3,), False)
    for layer, num_inputs in (("policy.0", 4), ("policy.1", 6)):
        for part in ("weight", "bias"):
            std = params.pop(f"{layer}.{part}_std")
            np.testing.assert_allclose(std, 0.5 / math.sqrt(num_inputs), rtol=1e-6)
    assert not params
    stored = json.loads(json.dumps(network.to_json()))
    assert network_from_json(stored) == network
    assert "noisy_std" not in plain.to_json()["body"]


@pytest.mark.parametrize("head", [Greedy(), Dueling()])
def test_only_policies_that_explore_have_noise(head):
    network = make_actor(head)
    params = make_params(network)
    snapshot, learned = PolicySnapshot(0, params), LearnedNetwork(network)
    flat = learned.layout.pack(params)
    exploration = EpsilonGreedy(start=0.0, end=0.0)
    obs = np.random.default_rng(1).standard_normal((5, 4), np.float32)
    exploring = ActingPolicy(network, snapshot, exploration=exploration)
    means = ActingPolicy(network, snapshot)
    tensor = torch.from_numpy(obs)
    noisy = learned.outputs(flat, tensor, noise=torch.from_numpy(params["noise"]))[0]
    np.testing.assert_allclose(exploring.head(obs), noisy, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(learned.step(flat, tensor)[0], noisy)
    plain = learned.outputs(flat, tensor)[0]
    np.testing.assert_allclose(means.head(obs), plain, rtol=1e-5, atol=1e-5)
    assert (noisy - plain).abs().max() > 0.1
    # A trained policy has no noise, also that of a run.
    np.testing.assert_array_equal(TrainedPolicy(exploring.on_host()).head(obs), means.head(obs))
    # New parameters arrive in place.
    other = make_params(network, seed=7)
    for name, x in params.items():
        x[...] = other[name]
    exploring.refresh(1)
    expected = ActingPolicy(network, PolicySnapshot(1, other), exploration=exploration).head(obs)
    np.testing.assert_array_equal(exploring.head(obs), expected)


def test_noise_is_set_and_not_learned():
    learned = LearnedNetwork(make_actor(Greedy()))
    flat = learned.initial(0).requires_grad_()
    obs, noise = torch.randn(5, 4), torch.randn(learned.num_noise)
    learned.outputs(flat, obs, noise=noise)[0].square().sum().backward()
    grads = learned.layout.unpack(flat.grad)
    assert not grads.pop("noise").any()
    assert all(grad.any() for grad in grads.values())
    with torch.no_grad():
        learned.set_noise(flat, noise)
    params = learned.layout.unpack(flat.detach())
    torch.testing.assert_close(params["noise"], noise, rtol=0, atol=0)
    start = learned.layout.unpack(learned.initial(0))
    assert all(torch.equal(x, start[name]) for name, x in params.items() if name != "noise")


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf])
def test_bad_values(std):
    with pytest.raises(ConfigError, match="`noisy_std` must be positive and finite, got"):
        actor(SPACES, Greedy(), noisy_std=std)
