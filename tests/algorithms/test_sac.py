import math
import warnings

import pytest
import torch

from hotloop.algorithms import sac
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from hotloop.runs import RunDirectory
from tests.algorithms.learners import (
    assert_learner_is_restored,
    learn_beside_reference,
    make_learner_setup,
)
from tests.reference import off_policy as reference

UNIT = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-1.0, -1.0), high=(1.0, 1.0))
UNEVEN = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-3.0, 0.5), high=(1.0, 1.0))
SMALL = {"batch_size": 32, "hidden_sizes": (16, 12), "execution": "eager", "torch_threads": 1}


def make_setup(action_spec=UNIT, **options):
    return make_learner_setup(sac.algorithm, action_spec, **{**SMALL, **options})


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small are slower with several threads."""
    with torch_threads(1):
        yield


@pytest.mark.parametrize(
    ("options", "action_spec"),
    [
        ({}, UNIT),
        ({"policy_frequency": 1, "layer_norm": True}, UNIT),
        ({"policy_frequency": 3, "alpha": 0.3, "hidden_sizes": (24,)}, UNIT),
        ({"activation": "tanh", "hidden_sizes": (8, 16, 8), "tau": 0.3}, UNEVEN),
        ({"layer_norm": True, "initial_alpha": 0.2, "target_entropy": 1.5, "tau": 1.0}, UNEVEN),
        ({"num_critics": 3, "policy_updates": 1}, UNIT),
        ({"num_critics": 5, "target_critics": 2, "policy_frequency": 4, "policy_updates": 1}, UNIT),
    ],
)
@pytest.mark.parametrize("weighed", [False, True])
def test_update_equals_the_reference(options, action_spec, weighed):
    """20 updates, compared with torch modules and torch's Adam."""
    rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 5e-3}
    setup = make_setup(action_spec, **rates, **options)
    config, nets, state = setup.config, setup.nets, setup.state
    peer = reference.SAC(
        action_spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        config,
    )
    metrics, policy_rows = learn_beside_reference(setup, peer, action_spec, weighed=weighed)
    got = setup.means()
    assert got.keys() == {*metrics, *policy_rows[0]}
    times = config.policy_updates or config.policy_frequency
    assert len(policy_rows) == 20 // config.policy_frequency * times
    if config.target_critics is not None:
        assert {len(subset) for subset in peer.subsets} == {config.target_critics}
        assert len(set(map(frozenset, peer.subsets))) > 5
    policy_means = {name: got[name] for name in policy_rows[0]}
    assert policy_means == pytest.approx(reference.means(policy_rows), rel=1e-3, abs=1e-4)
    assert setup.learner.num_updates == 20
    reference.assert_same_parameters(
        reference.actor_module(config, nets.policy.layout.unpack(state.policy)),
        peer.policy,
    )
    if config.alpha is None:
        assert state.log_alpha.item() == pytest.approx(peer.log_alpha.item(), abs=1e-5)
    else:
        assert got["alpha"] == pytest.approx(0.3)
        assert state.log_alpha.item() == 0.0  # it is unused


# --- the configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy_learning_rate": 0.0}, "`policy_learning_rate` must be positive and finite, got"),
        ({"critic_learning_rate": math.inf}, "`critic_learning_rate` must be positive and finite"),
        ({"critic_learning_rate": None}, "`critic_learning_rate` must be given, got None"),
        ({"policy_frequency": 0}, "`policy_frequency` must be a positive integer, got 0"),
        ({"tau": 1.5}, r"`tau` must lie in \[0, 1\], got 1.5"),
        ({"alpha": -0.1}, "`alpha` must be finite and not negative, got -0.1"),
        ({"alpha": 0.2, "initial_alpha": 5.0}, "`initial_alpha` 5.0 is for `alpha` None, got 0.2"),
        ({"initial_alpha": 0.0}, "`initial_alpha` must be positive and finite, got 0.0"),
        ({"target_entropy": math.nan}, "`target_entropy` must be a finite number, got nan"),
        ({"target_critics": 3}, "`target_critics` must be at most `num_critics` = 2, got 3"),
        ({"layer_norm": 1}, "`layer_norm` must be True or False, got 1"),
        ({"precision": "half"}, "`precision` must be 'float32', 'tf32' or 'bfloat16', got 'half'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        sac.Config(**options)


def test_options_override_a_preset():
    assert sac.preset("Pendulum-v1").total_timesteps == 20_000
    config = sac.preset("Pendulum-v1", total_timesteps=600, seed=3)
    assert (config.total_timesteps, config.learning_starts, config.seed) == (600, 500, 3)
    assert sac.preset("Hopper-v5") == sac.Config(env_id="Hopper-v5")


def test_learner_state_is_restored():
    assert_learner_is_restored(
        sac.algorithm,
        UNIT,
        lambda k: reference.random_batch(3, UNIT, 32, seed=k),
        **SMALL,
    )


# --- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fast", [False, True])
def test_bfloat16_learns_nearly_the_same(monkeypatch, is_fast):
    monkeypatch.setattr("hotloop.ops.products.HAS_FAST_BFLOAT16", is_fast)
    exact = make_setup()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rough = make_setup(precision="bfloat16")
    texts = [str(warning.message) for warning in caught]
    assert [text.startswith("this CPU has no instructions for bfloat16") for text in texts] == (
        [] if is_fast else [True]
    )
    for k in range(4):
        batch = reference.random_batch(3, UNIT, 32, seed=k)
        errors = exact.update(batch), rough.update(batch)
        torch.testing.assert_close(*errors, rtol=0.1, atol=0.1)
        assert not torch.equal(*errors)  # rounding does happen


# --- whole trainings -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pendulum_is_learned(tmp_path):
    """In a quarter of the preset's steps."""
    options = {"eval_interval": 5_000, "eval_episodes": 20, "run_dir": str(tmp_path / "run")}
    options["torch_threads"] = 1  # the same run, however many cores there are
    sac.train(sac.preset("Pendulum-v1", seed=1, total_timesteps=5_000, **options))
    evaluation = RunDirectory.open(tmp_path / "run").metrics()[-1]["evaluation"]
    assert len(evaluation["returns"]) == 20
    assert evaluation["mean_return"] > -200
