"""CrossQ: its update against the reference, the folded policy, restoring, refused options."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from hotloop.algorithms import crossq
from hotloop.envs.encoding import ObsEncoder
from hotloop.errors import ConfigError, SpaceError
from hotloop.learner import torch_threads
from hotloop.policies.batch_norm import NormalizedPerceptrons
from tests.algorithms.learners import assert_learner_is_restored, make_learner_setup
from tests.algorithms.test_sac import UNEVEN, UNIT
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec
from tests.reference import off_policy as reference

SMALL = {"batch_size": 32, "hidden_sizes": (16, 12), "critic_hidden_sizes": (20,)}
SMALL |= {"execution": "eager", "torch_threads": 1}


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


@pytest.mark.parametrize(
    ("options", "action_spec", "weighed"),
    [
        ({}, UNIT, False),
        ({"batch_norm_updates": 0, "statistics_rate": 0.3, "alpha": 0.2}, UNEVEN, True),
        ({"batch_norm_updates": 7, "policy_frequency": 1, "activation": "tanh"}, UNEVEN, True),
    ],
)
def test_update_equals_the_reference(options, action_spec, weighed):
    """20 updates, compared with torch modules in float64 and torch's Adam."""
    rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 5e-3}
    setup = make_learner_setup(crossq.algorithm, action_spec, **{**SMALL, **rates, **options})
    config, nets, state = setup.config, setup.nets, setup.state
    peer = reference.CrossQ(
        action_spec,
        nets.actor.layout.unpack(state.actor),
        nets.critics.layout.unpack(state.critics),
        config,
    )
    draw_noise, rows, policy_rows = setup.draw_noise(), [], []
    for k in range(20):
        batch = reference.random_batch(3, action_spec, 32, seed=k, weighed=weighed)
        td_error = setup.update(batch)
        metrics, new_rows, expected_error = peer.update(batch, draw_noise)
        rows.append(metrics)
        policy_rows += new_rows
        torch.testing.assert_close(td_error.double(), expected_error, rtol=2e-3, atol=2e-3)
    assert len(policy_rows) == 20 // config.policy_frequency
    expected = reference.means(rows) | reference.means(policy_rows)
    assert setup.means() == pytest.approx(expected, rel=2e-3, abs=2e-4)
    for layers, flat, statistics, modules in (
        (nets.actor, state.actor, state.actor_statistics, [peer.policy]),
        (nets.critics, state.critics, state.critics_statistics, peer.critics),
    ):
        named = layers.layout.unpack(flat) | layers.statistics.unpack(statistics)
        for name, x in named.items():
            layer, part = name.split(".")[1:]
            for k, module in enumerate(modules):
                index = 3 * int(layer) + (part in ("weight", "bias"))
                value = getattr(list(module)[index], part)
                value = value.T if part == "weight" else value
                difference = (x[k].reshape(value.shape) - value).abs()
                assert difference.mean() < 3e-4, (name, difference.mean())
    # The acting policy has the running statistics in its weights.
    obs = reference.random_batch(3, action_spec, 32, seed=20).obs
    outputs, _ = nets.policy.outputs(state.policy, obs)
    torch.testing.assert_close(outputs.double(), peer.policy(obs.double()), rtol=1e-2, atol=1e-2)
    direct = nets.actor.outputs(state.actor, state.actor_statistics, obs)[0]
    torch.testing.assert_close(outputs, direct, rtol=1e-4, atol=1e-4)
    published = setup.learner.publish(20).params["policy.0.weight"]
    np.testing.assert_array_equal(published.ravel(), state.policy[: published.size])


def make_layer():
    """Return one layer of one input and one output, y = x̂, and its parameters and statistics."""
    layers = NormalizedPerceptrons("layer", (1, 1))
    params = torch.tensor([1.0, 0.0, 1.0, 0.0])  # weight, bias, scale, shift
    assert list(layers.layout.shapes) == [
        f"layer.0.{part}" for part in ("weight", "bias", "scale", "shift")
    ]
    return layers, params, layers.initial_statistics(torch.device("cpu"))


def test_renormalization_of_a_worked_case():
    """Of 9 and 11, μ_B = 10 and σ_B² = 1. With μ = 0 and σ = 1, r = 1 and d = 5, not 10."""
    layers, params, statistics = make_layer()
    inputs = torch.tensor([[9.0], [11.0]])
    for is_warm, expected in ((False, [-1.0, 1.0]), (True, [4.0, 6.0])):
        outputs, batch = layers.train(params, statistics, inputs, torch.tensor(is_warm))
        torch.testing.assert_close(outputs.flatten(), torch.tensor(expected), rtol=1e-3, atol=0)
        torch.testing.assert_close(batch, torch.tensor([10.0, 1.0]))
    # Of 90 and 110, σ_B = 10, and r = 3.
    outputs, _ = layers.train(params, statistics, 10 * inputs, torch.tensor(True))
    torch.testing.assert_close(outputs.flatten(), torch.tensor([2.0, 8.0]), rtol=1e-3, atol=0)


def test_running_statistics_normalize_outside_of_updates():
    layers, params, _ = make_layer()
    statistics = torch.tensor([3.0, 4.0 - 1e-3])
    outputs = layers.outputs(params, statistics, torch.tensor([[3.0], [7.0]]))
    torch.testing.assert_close(outputs.flatten(), torch.tensor([0.0, 2.0]))


def test_values_at_both_ends_share_a_batch():
    """Another next observation changes the values at s, which no other algorithm's critics do."""
    setup = make_learner_setup(crossq.algorithm, UNIT, **SMALL)
    first, second = (reference.random_batch(3, UNIT, 32, seed=k) for k in (0, 1))
    args = first.action, first.action, torch.zeros(32), setup.nets
    values = [
        crossq.critic_loss(
            setup.state.critics, setup.state.critics_statistics, torch.tensor(False), batch, *args
        )[1][0]
        for batch in (first, first._replace(next_obs=second.next_obs))
    ]
    assert (values[0] - values[1]).abs().max() > 1e-3


def test_images_are_refused_unless_they_are_numbers():
    device, images = torch.device("cpu"), obs_spec(8, 8, 3, dtype="uint8")
    space = spaces.Dict(view=spaces.Box(0, 255, (8, 8, 3), np.uint8), x=spaces.Box(0, 1, (3,)))
    parts = ObsEncoder(space).spec
    for spec, network, message in (
        (images, None, "these observations hold images: choose `network` 'perceptron'"),
        (parts, None, "several parts with images: use ppo"),
        (parts, "perceptron", "several parts with images: use ppo"),
    ):
        with pytest.raises(SpaceError, match=message):
            crossq.networks(crossq.Config(network=network), Spaces(spec, UNIT), device)
    config = crossq.Config(network="perceptron")
    nets = crossq.networks(config, Spaces(images, UNIT), device)
    assert nets.critics.layout.shapes["critic.0.weight"][1] == 8 * 8 * 3 + 2


def test_learner_is_restored():
    assert_learner_is_restored(
        crossq.algorithm, UNIT, lambda k: reference.random_batch(3, UNIT, 32, seed=k), **SMALL
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"network": "nature"},
            "perceptrons with batch normalization, got `network` 'nature'",
        ),
        ({"layer_norm": True}, "got `layer_norm`: leave it out, or use sac"),
        ({"critic_hidden_sizes": ()}, "`critic_hidden_sizes` must name at least one hidden layer"),
        ({"statistics_rate": 1.5}, r"`statistics_rate` must lie in \[0, 1\], got 1.5"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ConfigError, match=message):
        crossq.Config(**options)
