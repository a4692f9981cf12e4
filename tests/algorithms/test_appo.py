"""APPO compared with PPO, and with a float64 reference of its update."""

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
from hotloop.training.learners import make_learner
from hotloop.training.minibatches import Passes
from hotloop.training.policy_reevaluation import reevaluate
from hotloop.training.run_updates import UpdateRequest, run_updates
from hotloop.types import Fragment
from tests import toy_envs
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, FAR_BOX, FAR_SCALE, obs_spec
from tests.reference import appo as reference
from tests.reference.ppo import ActorCriticNetworks

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
        (toy_envs.ConstantReward, {"memory": "lstm:8"}),  # truncated episodes
        (toy_envs.ReachTheTarget, {}),
    ],
)
def test_appo_equals_ppo_without_lag(tmp_path, env, options):
    fields = {**SMALL, **options, "total_timesteps": 4 * 128}
    trained = {}
    for algorithm in (ppo, appo):
        name = algorithm.algorithm.name
        config = algorithm.Config(**fields, run_dir=str(tmp_path / name))
        trained[name] = params_of(algorithm.train(config, env=env))
    for name, expected in trained["ppo"].items():
        np.testing.assert_allclose(trained["appo"][name], expected, rtol=0, atol=5e-6, err_msg=name)
    lines = RunDirectory.open(tmp_path / "appo").metrics()
    assert [(x["age_mean"], x["age_max"], x["truncated_share"]) for x in lines] == [(0, 0, 0)] * 4
    assert all(x["effective_share"] == pytest.approx(1.0, abs=1e-5) for x in lines)


# --- compared with the reference -----------------------------------------------------------------


def experience(action_spec, networks):
    """Return a fragment of the policy in which episodes terminate and are truncated."""
    num_steps, num_envs = SMALL["num_steps"], SMALL["num_envs"]
    rng = np.random.default_rng(3)
    shape = {"obs_shape": (4,), "obs_dtype": np.float32}
    action = {"action_shape": action_spec.shape, "action_dtype": action_spec.dtype}
    fragment = Fragment.allocate(num_steps, num_envs, **shape, **action)
    steps = (num_steps, num_envs)
    fragment.obs[:] = rng.standard_normal((*steps, 4))
    fragment.last_obs[:] = rng.standard_normal((num_envs, 4))
    fragment.reward[:] = rng.standard_normal(steps)
    fragment.terminated[:] = rng.random(steps) < 0.1
    fragment.truncated[:] = (rng.random(steps) < 0.1) & ~fragment.terminated
    is_end = fragment.terminated | fragment.truncated
    assert fragment.terminated.any()
    assert fragment.truncated.any()
    assert not is_end[-1].all()
    fragment.next_obs[:-1], fragment.next_obs[-1] = fragment.obs[1:], fragment.last_obs
    fragment.next_obs[is_end] = rng.standard_normal((is_end.sum(), 4))
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
        (FAR_BOX, {"entropy_coef": 0.1}),
    ],
)
def test_update_equals_the_reference(action_spec, options):
    """8 minibatches of another policy's fragment, from values to weights."""
    config = appo.Config(**SMALL, **options, learning_rate=1e-3)
    device = torch.device("cpu")
    nets = appo.networks(config, Spaces(obs_spec(4), action_spec), device)
    learner = make_learner(
        appo.algorithm,
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
    acting_params = {
        name: x + 0.2 * rng.standard_normal(x.shape).astype(np.float32) * (x.ndim > 1)
        for name, x in params.items()
    }
    policy = ActingPolicy(nets.network, PolicySnapshot(0, acting_params))
    action_scale = FAR_SCALE if action_spec is FAR_BOX else (0.0, 1.0)
    fragment = experience(action_spec, ActorCriticNetworks(acting_params, action_scale))

    (reevaluated,) = reevaluate(
        [fragment], nets, learner.state.params, policy, reference.AGE, learner.upload
    )
    prepared = appo.prepare(fragment, learner.hyper.floats, config, reevaluated)
    fields = {name: x for name, x in prepared._asdict().items() if x is not None}
    rows = {name: torch.from_numpy(x).flatten(0, 1) for name, x in fields.items()}
    peer = ActorCriticNetworks(params, action_scale).double()
    expected_rows = reference.prepared(peer, fragment, config)
    importance = (expected_rows["newest_log_prob"] - expected_rows["log_prob"]).exp()
    assert importance.max() > 1.5  # the acting policy matters
    assert importance.min() < 0.6
    for name, x in expected_rows.items():
        np.testing.assert_allclose(rows[name], x, rtol=1e-4, atol=1e-5, err_msg=name)

    actual = appo.loss(
        learner.state.params, appo.Batch(**rows), None, learner.hyper.tensors, nets, config
    )
    expected, shares = reference.loss(peer, expected_rows, config)
    assert actual[0].item() == pytest.approx(expected.item(), rel=1e-4)
    for name, share in shares.items():
        assert actual[1][name].item() == pytest.approx(share.item(), rel=1e-4), name

    passes = Passes(learner, config, learner.state.active)
    run_updates(UpdateRequest(learner, passes.minibatches(appo.Batch(**rows)), ("update",)))
    orders_rng = np.random.default_rng((config.seed, 1))
    orders = [
        torch.from_numpy(orders_rng.permutation(config.batch_size))
        for _ in range(config.update_epochs)
    ]
    optimizer = torch.optim.Adam(peer.parameters(), lr=config.learning_rate, eps=1e-5)
    reference.learn(peer, optimizer, expected_rows, orders, config)
    assert learner.state.adam.step.item() == 8
    for name, x in peer.numpy().items():
        learned = learner.publish(1).params[name]
        np.testing.assert_allclose(learned, x, rtol=2e-3, atol=2e-5, err_msg=name)
        assert not np.allclose(learned, params[name], rtol=0, atol=2e-4)


def test_metrics_of_a_distant_policy_are_finite():
    """The square of e^60 overflows float32."""
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
    total, metrics = appo.loss(nets.initial(0), batch, None, hyper, nets, config)
    assert total.isfinite()
    assert metrics["effective_share"].item() == pytest.approx(1 / size)
    assert metrics["truncated_share"].item() == pytest.approx(1 / size)


# --- gradients of a stream -----------------------------------------------------------------------


def clip_gradients(norms, weights, bound=0.5):
    """Return the norms of clipped gradients, and the estimated usual norm."""
    usual_norm = torch.zeros(())
    norms_after = []
    for norm, weight in zip(norms, weights, strict=True):
        grad, before = appo.clip_by_mean_norm(
            torch.tensor([0.6, 0.8]) * norm,
            torch.tensor(bound),
            usual_norm=usual_norm,
            weight=torch.full((4,), weight),
        )
        assert before.item() == pytest.approx(norm) or norm != norm
        norms_after.append(torch.linalg.vector_norm(grad).item())
    return norms_after, usual_norm.item()


def test_gradients_are_scaled_by_the_usual_norm():
    """Nine of ten gradients have weight 1 and norm 2. The tenth has weight 6 and norm 6."""
    norms, weights = ([2.0] * 9 + [6.0]) * 200, ([1.0] * 9 + [6.0]) * 200
    norms_after, usual_norm = clip_gradients(norms, weights)
    assert usual_norm == pytest.approx(0.9 * 2.0 + 0.1 * 1.0, rel=0.02)
    scales = np.divide(norms_after, norms)[-100:]
    np.testing.assert_allclose(scales, 0.5 / 1.9, rtol=0.05)


def test_small_gradients_stay_and_the_first_is_scaled_by_itself():
    assert clip_gradients([0.3, 0.2], [1.0, 1.0])[0] == pytest.approx([0.3, 0.2], rel=1e-4)
    # ‖g‖ / w = 1, bound 0.5.
    assert clip_gradients([2.0], [2.0])[0] == pytest.approx([1.0], rel=1e-4)


def test_outliers_are_cut_and_nan_is_ignored():
    norms_after, usual_norm = clip_gradients([0.1] * 50 + [100.0], [1.0] * 51)
    assert norms_after[-1] == pytest.approx(4 * 0.1, rel=0.05)
    assert usual_norm == pytest.approx(0.103, rel=0.01)
    norms_after, usual_norm = clip_gradients([0.1, float("nan"), 0.1], [1.0] * 3)
    assert usual_norm == pytest.approx(0.1)
    assert norms_after[-1] == pytest.approx(0.1, rel=1e-4)


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
            "`max_policy_age` must be at least 2 for `schedule` 'async', .* got 1: raise it, "
            r"or choose 'lag:1' \(1\) or 'barrier' \(0\)",
        ),
        (
            {"too_old": "drop", "schedule": "lag:1", "workers": 2},
            "`too_old` 'drop' is for `schedule` 'async', got 'lag:1': set `schedule`, or",
        ),
        ({"max_c": 1.5}, "`max_c` must be at most `max_rho` = 1.0, got 1.5: 1 and 1 are usual"),
        ({"schedule": "async"}, "`schedule` 'async' needs `workers`, got 0: set `workers`, or"),
        ({"schedule": "lag:1"}, "`schedule` 'lag:1' needs `workers`"),
        (
            {"schedule": "async", "workers": 2, "overlap": True},
            "`overlap` True is for `schedule` 'barrier' or 'variable', got 'async': set",
        ),
        ({"schedule": "lag:2", "workers": 2}, "`schedule` must be 'barrier', 'variable', 'lag:1'"),
        ({"max_rho": 0.0}, "`max_rho` must be positive and finite, got 0.0"),
        ({"hold_back": -1}, "`hold_back` must be an integer ≥ 0, got -1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        appo.Config(**options)


def test_error_names_the_algorithms_with_async(capsys):
    assert main(["train", "ppo", "--schedule", "async", "--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "'async' is for appo, and for algorithms that learn from replay" in error
