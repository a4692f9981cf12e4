import math
import warnings

import numpy as np
import pytest
import torch

from hotloop.algorithms import sac
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from hotloop.runs import RunDirectory
from tests.algorithms.learners import assert_comes_back, make_learning
from tests.reference import off_policy as reference

UNIT = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-1.0, -1.0), high=(1.0, 1.0))
UNEVEN = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-3.0, 0.5), high=(1.0, 1.0))
SMALL = {"batch_size": 32, "hidden_sizes": (16, 12), "execution": "eager", "torch_threads": 1}


def learning(action_spec=UNIT, **options):
    return make_learning(sac.algorithm, action_spec, **{**SMALL, **options})


@pytest.fixture(autouse=True)
def one_thread():
    """More of them take longer to meet than these networks take."""
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
    ],
)
@pytest.mark.parametrize("weighed", [False, True])
def test_update_is_the_usual_one(options, action_spec, weighed):
    """20 updates, beside modules and torch's own Adam."""
    rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 5e-3}
    ours = learning(action_spec, **rates, **options)
    config, nets, state = ours.config, ours.nets, ours.state
    start = state.policy.clone(), state.critics.clone()
    peer = reference.SAC(
        action_spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        config,
    )
    draw_noise, policy_rows = ours.draw_noise(), []
    for k in range(20):
        batch = reference.random_batch(3, action_spec, 32, seed=k, weighed=weighed)
        td_error = ours.update(batch)
        metrics, new_rows, their_error = peer.update(batch, draw_noise)
        policy_rows += new_rows
        torch.testing.assert_close(td_error.double(), their_error, rtol=1e-3, atol=1e-3)
        if k == 0:
            first = {name: x for name, x in ours.means().items() if name in metrics}
            assert first == pytest.approx(metrics, rel=1e-4)

    got = ours.means()
    assert got.keys() == {*metrics, *policy_rows[0]}
    assert len(policy_rows) == 20 // config.policy_frequency * config.policy_frequency
    of_policy = {name: got[name] for name in policy_rows[0]}
    assert of_policy == pytest.approx(reference.means(policy_rows), rel=1e-3, abs=1e-4)
    assert ours.learner.num_updates == 20
    for flat, before in zip((state.policy, state.critics), start, strict=True):
        assert (flat - before).abs().mean() > 0.01
    reference.assert_same_parameters(
        reference.actor_module(config, nets.policy.layout.unpack(state.policy)),
        peer.policy,
    )
    for flat, theirs in (
        (state.critics, peer.critics.modules),
        (state.targets, peer.critics.targets),
    ):
        named = nets.critics.layout.unpack(flat)
        ours_now = reference.critic_modules(config, named)
        reference.assert_same_parameters(ours_now, theirs)
    if config.alpha is None:
        assert state.log_alpha.item() == pytest.approx(peer.log_alpha.item(), abs=1e-5)
    else:
        assert got["alpha"] == pytest.approx(0.3)
        assert state.log_alpha.item() == 0.0  # nobody asks for it
    # What is published are the policy's parameters.
    np.testing.assert_array_equal(
        ours.learner.publish(20).params["policy.0.weight"].ravel(),
        state.policy[: 3 * config.hidden_sizes[0]],
    )


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
        ({"alpha": 0.2, "initial_alpha": 5.0}, "`initial_alpha` and `target_entropy` are of one"),
        ({"initial_alpha": 0.0}, "`initial_alpha` must be positive and finite, got 0.0"),
        ({"target_entropy": math.nan}, "`target_entropy` must be finite, got nan"),
        ({"layer_norm": 1}, "`layer_norm` must be True or False, got 1"),
        ({"precision": "half"}, "`precision` must be 'float32', 'tf32' or 'bfloat16', got 'half'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        sac.Config(**options)


def test_a_preset_gives_way_to_options():
    assert sac.preset("Pendulum-v1").total_timesteps == 20_000
    mine = sac.preset("Pendulum-v1", total_timesteps=600, seed=3)
    assert (mine.total_timesteps, mine.learning_starts, mine.seed) == (600, 500, 3)
    assert sac.preset("Hopper-v5") == sac.Config(env_id="Hopper-v5")


def test_what_a_learner_holds_comes_back():
    assert_comes_back(
        sac.algorithm,
        UNIT,
        lambda k: reference.random_batch(3, UNIT, 32, seed=k),
        **SMALL,
    )


# --- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fast", [False, True])
def test_bfloat16_learns_nearly_the_same(monkeypatch, is_fast):
    monkeypatch.setattr("hotloop.ops.products.HAS_FAST_BFLOAT16", is_fast)
    exact = learning()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rough = learning(precision="bfloat16")
    texts = [str(one.message) for one in caught]
    assert [text.startswith("this CPU has no instructions for bfloat16") for text in texts] == (
        [] if is_fast else [True]
    )
    for k in range(4):
        batch = reference.random_batch(3, UNIT, 32, seed=k)
        errors = exact.update(batch), rough.update(batch)
        torch.testing.assert_close(*errors, rtol=0.1, atol=0.1)
        assert not torch.equal(*errors)  # it is rounded indeed


# --- whole trainings -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pendulum_is_learned(tmp_path):
    options = {"eval_interval": 20_000, "eval_episodes": 20, "run_dir": str(tmp_path / "run")}
    options["torch_threads"] = 1  # the same run, however many cores there are
    sac.train(sac.preset("Pendulum-v1", seed=1, **options))
    evaluation = RunDirectory.open(tmp_path / "run").metrics()[-1]["evaluation"]
    assert len(evaluation["returns"]) == 20
    assert evaluation["mean_return"] > -200
