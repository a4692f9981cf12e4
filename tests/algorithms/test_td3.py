import math

import pytest
import torch

from hotloop.algorithms import td3
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from hotloop.runs import RunDirectory
from tests.algorithms.learners import learn_beside_reference, make_learner_setup
from tests.algorithms.test_sac import SMALL, UNEVEN, UNIT
from tests.reference import off_policy as reference


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small are slower with several threads."""
    with torch_threads(1):
        yield


def make_setup(action_spec=UNIT, **options):
    return make_learner_setup(td3.algorithm, action_spec, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("options", "action_spec"),
    [
        ({}, UNIT),
        ({"policy_frequency": 1, "layer_norm": True, "tau": 0.3}, UNIT),
        ({"policy_frequency": 3, "noise_clip": 0.1, "tau": 1.0, "hidden_sizes": (24,)}, UNEVEN),
        ({"policy_noise": 0.8, "activation": "tanh", "hidden_sizes": (8, 16, 8)}, UNEVEN),
    ],
)
@pytest.mark.parametrize("weighed", [False, True])
def test_update_equals_the_reference(options, action_spec, weighed):
    """20 updates, compared with torch modules and torch's Adam."""
    setup = make_setup(action_spec, learning_rate=4e-3, **options)
    config, nets, state = setup.config, setup.nets, setup.state
    for flat in (state.policy, state.policy_target):
        flat.mul_(10 ** (1 / (len(config.hidden_sizes) + 1)))  # actions near their bounds
    peer = reference.TD3(
        action_spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        config,
    )
    metrics, policy_rows = learn_beside_reference(setup, peer, action_spec, weighed=weighed)
    got = setup.means()
    assert got.keys() == {*metrics, "policy_loss"}
    assert len(policy_rows) == 20 // config.policy_frequency
    expected = reference.means(policy_rows)["policy_loss"]
    assert got["policy_loss"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    # The bounds on the noise and on the action make a difference.
    assert min(peer.num_clipped, peer.num_beyond) > 10
    for flat, peer_module in (
        (state.policy, peer.policy),
        (state.policy_target, peer.policy_target),
    ):
        named = nets.policy.layout.unpack(flat)
        module = reference.actor_module(config, named)
        reference.assert_same_parameters(module, peer_module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be positive and finite, got 0.0"),
        ({"learning_rate": None}, "`learning_rate` must be given, got None"),
        ({"policy_frequency": 1.5}, "`policy_frequency` must be a positive integer, got 1.5"),
        ({"tau": -0.1}, r"`tau` must lie in \[0, 1\], got -0.1"),
        ({"exploration_noise": -1.0}, "`exploration_noise` must be finite and not negative"),
        ({"policy_noise": math.nan}, "`policy_noise` must be finite and not negative, got nan"),
        ({"noise_clip": "-0.5"}, "`noise_clip` must be finite and not negative, got '-0.5'"),
        ({"layer_norm": "no"}, "`layer_norm` must be True or False, got 'no'"),
        ({"precision": "half"}, "`precision` must be 'float32', 'tf32' or 'bfloat16', got 'half'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        td3.Config(**options)


def test_options_override_a_preset():
    assert td3.preset("Pendulum-v1").learning_starts == 500
    assert td3.preset("Pendulum-v1", learning_starts=7).learning_starts == 7
    assert td3.preset("Hopper-v5") == td3.Config(env_id="Hopper-v5")


def test_slow_bfloat16_is_warned_about(monkeypatch):
    monkeypatch.setattr("hotloop.ops.products.HAS_FAST_BFLOAT16", False)
    exact = make_setup()
    with pytest.warns(RuntimeWarning, match="no instructions for bfloat16"):
        rough = make_setup(precision="bfloat16")
    batch = reference.random_batch(3, UNIT, 32, seed=0)
    errors = exact.update(batch), rough.update(batch)
    torch.testing.assert_close(*errors, rtol=0.1, atol=0.1)
    assert not torch.equal(*errors)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pendulum_is_learned(tmp_path):
    """In two fifths of the preset's steps."""
    options = {"eval_interval": 8_000, "eval_episodes": 20, "run_dir": str(tmp_path / "run")}
    options["torch_threads"] = 1  # the same run, however many cores there are
    td3.train(td3.preset("Pendulum-v1", seed=1, total_timesteps=8_000, **options))
    evaluation = RunDirectory.open(tmp_path / "run").metrics()[-1]["evaluation"]
    assert len(evaluation["returns"]) == 20
    assert evaluation["mean_return"] > -200


def test_custom_network_refuses_layer_options():
    wide = td3.Config(network="my_nets:Actor", hidden_sizes=(400, 300))  # for the critics
    assert wide.hidden_sizes == (400, 300)
    with pytest.raises(
        ConfigError, match=r"`network` .* is a custom network with its own layers: .*`activation`"
    ):
        td3.Config(network="my_nets:Actor", activation="tanh")
    with pytest.raises(ConfigError, match="`layer_norm` True is for `critic_network` None"):
        td3.Config(critic_network="my_nets:Critic", layer_norm=True)
