"""APPO beside PPO, and beside its update written out in float64."""

from functools import partial

import numpy as np
import pytest
import torch

from hotloop.algorithms import appo, ppo
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.learner import UpdateRule
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.runs import RunDirectory
from hotloop.training.learning import Learning, learn
from hotloop.training.newest import newest
from hotloop.types import Fragment
from tests import toy_envs
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, obs_spec
from tests.reference import appo as reference
from tests.reference.ppo import Networks

SMALL = {
    "num_envs": 4,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 4,
    "hidden_sizes": (16, 16),
    "execution": "eager",
}


def params_of(result):
    return RunDirectory.open(result.run_dir).load_policy()[1].params


# --- at age 0 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", {"normalize_obs": True, "normalize_reward": True}),
        ("CartPole-v1", {"clip_value_loss": True, "entropy_coef": 0.01, "target_kl": 0.02}),
        ("CartPole-v1", {"memory": "gru:8", "sequence_length": 16}),
        (toy_envs.ConstantReward, {"memory": "lstm:8"}),  # episodes that are cut off
        (toy_envs.ReachTheTarget, {}),
    ],
)
def test_with_what_the_newest_policy_did_it_is_ppo(tmp_path, env, options):
    given = {**SMALL, **options, "total_timesteps": 4 * 128}
    trained = {}
    for algorithm in (ppo, appo):
        name = algorithm.algorithm.name
        config = algorithm.Config(**given, run_dir=str(tmp_path / name))
        trained[name] = params_of(algorithm.train(config, env=env))
    for name, theirs in trained["ppo"].items():
        np.testing.assert_allclose(trained["appo"][name], theirs, rtol=0, atol=5e-6, err_msg=name)
    lines = RunDirectory.open(tmp_path / "appo").metrics()
    assert [(x["age_mean"], x["age_max"], x["truncated_share"]) for x in lines] == [(0, 0, 0)] * 4
    assert all(x["effective_share"] == pytest.approx(1.0, abs=1e-5) for x in lines)


# --- beside the twin -----------------------------------------------------------------------------


def experience(action_spec, params, policy):
    """A fragment of a policy with such parameters, in which episodes terminate and are cut off."""
    num_steps, num_envs = SMALL["num_steps"], SMALL["num_envs"]
    rng, networks = np.random.default_rng(3), Networks(params)
    shape = {"obs_shape": (4,), "obs_dtype": np.float32}
    action = {"action_shape": action_spec.shape, "action_dtype": action_spec.dtype}
    fragment = Fragment.allocate(num_steps, num_envs, **shape, **action)
    steps = (num_steps, num_envs)
    fragment.obs[:] = rng.standard_normal((*steps, 4))
    fragment.last_obs[:] = rng.standard_normal((num_envs, 4))
    fragment.reward[:] = rng.standard_normal(steps)
    fragment.terminated[:] = rng.random(steps) < 0.1
    fragment.truncated[:] = (rng.random(steps) < 0.1) & ~fragment.terminated
    ended = fragment.terminated | fragment.truncated
    assert fragment.terminated.any()
    assert fragment.truncated.any()
    assert not ended[-1].all()
    fragment.next_obs[:-1], fragment.next_obs[-1] = fragment.obs[1:], fragment.last_obs
    fragment.next_obs[ended] = rng.standard_normal((ended.sum(), 4))
    with torch.no_grad():
        torch.manual_seed(0)
        distribution = networks.distribution(torch.from_numpy(fragment.obs))
        action = distribution.sample()
        fragment.action[:] = action
        fragment.log_prob[:] = distribution.log_prob(action)
        fragment.value[:] = networks.value(torch.from_numpy(fragment.obs))[..., 0]
        fragment.next_value[:] = networks.value(torch.from_numpy(fragment.next_obs))[..., 0]
    fragment.next_value[fragment.terminated] = 0.0
    return fragment


@pytest.mark.parametrize(
    ("action_spec", "options"),
    [
        (BOX, {}),
        (DISCRETE, {"clip_value_loss": True, "entropy_coef": 0.1, "max_grad_norm": 0.05}),
        (DISCRETE, {"max_rho": 2.0, "max_c": 0.8, "max_importance": 1.5}),
        (DISCRETE, {"vtrace": False, "proximal_power": 0.0}),
        (BOX, {"entropy_coef": 0.1, "proximal_power": 1.0}),
    ],
)
def test_update_is_that_of_the_twin(action_spec, options):
    """8 minibatches of what another policy did, from first values to the weights."""
    config = appo.Config(**SMALL, **options, learning_rate=1e-3)
    device = torch.device("cpu")
    nets = appo.networks(config, Spaces(obs_spec(4), action_spec), device)
    learner = appo.algorithm.make_learner(
        config,
        nets,
        [UpdateRule(function=partial(appo.update, nets=nets, config=config))],
        device=device,
        stream=1,
        num_batches=config.num_updates,
        batch_size=config.minibatch_size,
    )
    params = nets.network.initial_parameters(config.seed)
    rng = np.random.default_rng(0)
    acted = {
        name: x + 0.2 * rng.standard_normal(x.shape).astype(np.float32) * (x.ndim > 1)
        for name, x in params.items()
    }
    policy = ActingPolicy(nets.network, PolicySnapshot(0, acted))
    fragment = experience(action_spec, acted, policy)

    (seen,) = newest([fragment], nets, learner.state.params, policy, reference.AGE, learner.sent)
    prepared = appo.prepare(fragment, learner.hyper.floats, config, seen)
    fields = {name: x for name, x in prepared._asdict().items() if x is not None}
    rows = {name: torch.from_numpy(x).flatten(0, 1) for name, x in fields.items()}
    peer = Networks(params).double()
    theirs = reference.prepared(peer, fragment, config)
    importance = (theirs["newest_log_prob"] - theirs["log_prob"]).exp()
    assert importance.max() > 1.5  # it matters who acted
    assert importance.min() < 0.6
    for name, x in theirs.items():
        np.testing.assert_allclose(rows[name], x, rtol=1e-4, atol=1e-5, err_msg=name)

    told = appo.loss(learner.state.params, appo.Batch(**rows), learner.hyper.tensors, nets, config)
    expected, shares = reference.loss(peer, theirs, config)
    assert told[0].item() == pytest.approx(expected.item(), rel=1e-4)
    for name, share in shares.items():
        assert told[1][name].item() == pytest.approx(share.item(), rel=1e-4), name

    learn(Learning(learner, appo.algorithm._learn(appo.Batch(**rows), learner, config), ("u",)))
    orders_rng = np.random.default_rng((config.seed, 1))
    orders = [
        torch.from_numpy(orders_rng.permutation(config.batch_size))
        for _ in range(config.update_epochs)
    ]
    optimizer = torch.optim.Adam(peer.parameters(), lr=config.learning_rate, eps=1e-5)
    reference.learn(peer, optimizer, theirs, orders, config)
    assert learner.state.adam.step.item() == 8
    for name, x in peer.numpy().items():
        ours = learner.publish(1).params[name]
        np.testing.assert_allclose(ours, x, rtol=2e-3, atol=2e-5, err_msg=name)
        assert not np.allclose(ours, params[name], rtol=0, atol=2e-4)


def test_a_policy_far_away_is_told_of_in_numbers():
    """e^60 squared is no float32."""
    config = appo.Config(**SMALL)
    nets = appo.networks(config, Spaces(obs_spec(4), DISCRETE), torch.device("cpu"))
    size = config.minibatch_size
    zeros = torch.zeros(size)
    log_prob = zeros.clone()
    log_prob[0] = -60.0
    batch = appo.Batch(
        torch.zeros(size, 4), zeros.long(), log_prob, zeros, torch.randn(size), zeros, zeros, zeros
    )
    hyper = appo.Hyper(*(torch.tensor(x) for x in (1e-3, 0.2, 0.0, 0.5, 0.5, 0.99, 0.95)))
    total, told = appo.loss(nets.initial(0), batch, hyper, nets, config)
    assert total.isfinite()
    assert told["effective_share"].item() == pytest.approx(1 / size)
    assert told["truncated_share"].item() == pytest.approx(1 / size)


# --- gradients of a stream -----------------------------------------------------------------------


def clipped(norms, weights, bound=0.5):
    """The norms that gradients of these norms have afterwards, and their usual norm."""
    usual = torch.zeros(())
    told = []
    for norm, weight in zip(norms, weights, strict=True):
        grad, before = appo.clip_stream(
            torch.tensor([0.6, 0.8]) * norm,
            torch.tensor(bound),
            usual_norm=usual,
            weight=torch.full((4,), weight),
        )
        assert before.item() == pytest.approx(norm) or norm != norm
        told.append(torch.linalg.vector_norm(grad).item())
    return told, usual.item()


def test_a_gradient_is_scaled_by_the_usual_norm_and_not_by_its_own():
    """Of weight 1, nine times as often, it is 2; of weight 6 it is 6."""
    norms, weights = ([2.0] * 9 + [6.0]) * 200, ([1.0] * 9 + [6.0]) * 200
    told, usual = clipped(norms, weights)
    assert usual == pytest.approx(0.9 * 2.0 + 0.1 * 1.0, rel=0.02)
    scales = np.divide(told, norms)[-100:]
    np.testing.assert_allclose(scales, 0.5 / 1.9, rtol=0.05)


def test_small_gradients_stay_as_they_are_and_the_first_is_its_own_measure():
    assert clipped([0.3, 0.2], [1.0, 1.0])[0] == pytest.approx([0.3, 0.2], rel=1e-4)
    # ‖g‖ / w = 1, bound 0.5.
    assert clipped([2.0], [2.0])[0] == pytest.approx([1.0], rel=1e-4)


def test_one_far_from_what_is_usual_is_cut_and_one_that_is_nan_leaves_no_trace():
    told, usual = clipped([0.1] * 50 + [100.0], [1.0] * 51)
    assert told[-1] == pytest.approx(4 * 0.1, rel=0.05)
    assert usual == pytest.approx(0.103, rel=0.01)
    told, usual = clipped([0.1, float("nan"), 0.1], [1.0] * 3)
    assert usual == pytest.approx(0.1)
    assert told[-1] == pytest.approx(0.1, rel=1e-4)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"schedule": "async", "workers": 2, "max_policy_age": 0},
            r"must be at least 2 .* got 0: raise it, or choose 'lag:1' \(1\) or 'barrier' \(0\)",
        ),
        (
            {"schedule": "async", "workers": 2, "max_policy_age": 1},
            "`max_policy_age` must be at least 2 where `schedule` is 'async', .* got 1: raise it, "
            r"or choose 'lag:1' \(1\) or 'barrier' \(0\)",
        ),
        (
            {"too_old": "drop", "schedule": "lag:1", "workers": 2},
            "`too_old` 'drop' is for `schedule` 'async', got 'lag:1', in which nothing becomes too",
        ),
        ({"max_c": 1.5}, "`max_c` must be at most `max_rho` = 1.0, got 1.5: 1 and 1 are usual"),
        ({"schedule": "async"}, "`schedule` 'async' needs workers of their own: set `workers` too"),
        ({"schedule": "lag:1"}, "`schedule` 'lag:1' needs workers of their own"),
        (
            {"schedule": "async", "workers": 2, "overlap": True},
            "`overlap` is what `schedule` 'async' does anyway: leave it out",
        ),
        ({"schedule": "lag:2", "workers": 2}, "`schedule` must be 'barrier', 'variable', 'lag:1'"),
        ({"max_rho": 0.0}, "`max_rho` must be positive and finite, got 0.0"),
        ({"hold_back": -1}, "`hold_back` must be an integer ≥ 0, got -1"),
    ],
)
def test_refuses_what_can_not_be(options, message):
    with pytest.raises(ConfigError, match=message):
        appo.Config(**options)


def test_who_has_no_asynchronous_schedule_says_who_has(capsys):
    assert main(["train", "ppo", "--schedule", "async", "--workers", "2"]) == 2
    told = capsys.readouterr().err
    assert "'async' is for appo, and for algorithms that learn from replay" in told
