from functools import partial

import numpy as np
import pytest
import torch

from hotloop.algorithms import ppo
from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError
from hotloop.learner import UpdateRule
from hotloop.runs import RunDirectory
from hotloop.training.learners import make_learner
from hotloop.training.minibatches import Passes
from hotloop.training.run_updates import UpdateRequest, run_updates
from tests import toy_envs
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, FAR_BOX, FAR_SCALE, HYBRID, obs_spec
from tests.reference import ppo as reference

SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "update_epochs": 4}


def train(tmp_path, env=None, name="run", on_report=None, **options):
    config = ppo.Config(run_dir=str(tmp_path / name), **{**SMALL, **options})
    return ppo.train(config, env=env, on_report=on_report)


# --- the update ----------------------------------------------------------------------------------


def test_initial_log_std_is_that_of_the_first_actions():
    values = {}
    config = ppo.Config(**SMALL, initial_log_std=-2.0)
    for configuration in (ppo.Config(**SMALL), config):
        nets = ppo.networks(configuration, Spaces(obs_spec(4), BOX), torch.device("cpu"))
        params = nets.layout.views(ppo.init(nets, configuration).params)
        values[configuration.initial_log_std] = params
    assert (values[0.0].pop("policy.log_std") == 0.0).all()
    assert (values[-2.0].pop("policy.log_std") == -2.0).all()
    for name, value in values[-2.0].items():
        assert (value == values[0.0][name]).all()

    nets = ppo.networks(config, Spaces(obs_spec(4), DISCRETE), torch.device("cpu"))
    with pytest.raises(ConfigError, match="for continuous actions, got discrete ones: leave it"):
        ppo.init(nets, config)


@pytest.mark.parametrize(
    ("action_spec", "options"),
    [
        (DISCRETE, {}),
        (BOX, {"clip_value_loss": True, "entropy_coef": 0.1, "max_grad_norm": 0.05}),
        (FAR_BOX, {"entropy_coef": 0.1}),
        (HYBRID, {"entropy_coef": 0.1}),
        (DISCRETE, {"target_kl": 0.001, "learning_rate": 0.01}),
    ],
)
def test_update_equals_the_reference(action_spec, options):
    """40 minibatches, compared with torch modules and torch's Adam."""
    fixed = {
        "update_epochs": 20,
        "execution": "eager",
        "hidden_sizes": (16, 16),
        "learning_rate": 1e-3,
    }
    config = ppo.Config(**{**SMALL, **fixed, "seed": 0, **options})
    device = torch.device("cpu")
    nets = ppo.networks(config, Spaces(obs_spec(4), action_spec), device)
    params = nets.network.initial_parameters(0)
    rng = np.random.default_rng(0)
    action_scale = (0.0, 1.0) if action_spec in (DISCRETE, BOX) else FAR_SCALE
    peer = reference.ActorCriticNetworks(params, action_scale, action_spec.nvec)
    size = config.batch_size
    obs = torch.from_numpy(rng.standard_normal((size, 4)).astype(np.float32))
    with torch.no_grad():
        torch.manual_seed(0)
        distribution = peer.distribution(obs)
        action = distribution.sample()
        value = peer.value(obs)[:, 0]
        advantages = torch.randn(size)
        batch = ppo.Batch(
            obs, action, distribution.log_prob(action), value, advantages, advantages + value
        )

    learner = make_learner(
        ppo.algorithm,
        config,
        nets,
        [UpdateRule(function=partial(ppo.update, nets=nets, config=config))],
        device=device,
        stream=1,
        num_batches=config.num_updates,
        batch_size=config.minibatch_size,
    )
    passes = Passes(learner, config, learner.state.active)
    run_updates(UpdateRequest(learner, passes.minibatches(batch), ("update",)))
    metrics = passes.metrics

    orders_rng = np.random.default_rng((0, 1))
    orders = [torch.from_numpy(orders_rng.permutation(size)) for _ in range(config.update_epochs)]
    optimizer = torch.optim.Adam(peer.parameters(), lr=config.learning_rate, eps=1e-5)
    steps = reference.learn(peer, optimizer, batch, orders, config)

    assert learner.state.adam.step.item() == steps
    assert steps == 40 if config.target_kl is None else 0 < steps < 40
    assert metrics["num_updates"] == steps
    assert np.isfinite(list(metrics.values())).all()
    learned = learner.publish(1).params
    for name, expected in peer.numpy().items():
        np.testing.assert_allclose(learned[name], expected, rtol=2e-3, atol=2e-5, err_msg=name)
        if "policy" in name:
            assert not np.array_equal(learned[name], params[name])


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "best"),
    [
        (toy_envs.ChooseTheSign, 1.0),
        (toy_envs.MultiSign, 2.0),
        (toy_envs.ReachTheTarget, 0.0),
        (toy_envs.MixedSign, 2.0),
    ],
)
def test_learns_each_kind_of_action(tmp_path, env, best):
    result = train(tmp_path, env, total_timesteps=2_500, learning_rate=1e-2)
    assert result.status == "finished"
    assert result.mean_return > best - 0.15
    single = env()
    returns = []
    for seed in range(50):
        obs, _ = single.reset(seed=seed)
        returns.append(single.step(result.policy.act(obs))[1])
    assert np.mean(returns) > best - 0.02


def test_discount_and_lambda_reach_the_advantages(tmp_path, monkeypatch):
    calls = []
    gae = ppo.gae
    monkeypatch.setattr(ppo, "gae", lambda *args, **kw: (calls.append(kw), gae(*args, **kw))[1])
    train(tmp_path, env_id="CartPole-v1", total_timesteps=100, gamma=0.7, gae_lambda=0.3)
    assert calls == [{"gamma": 0.7, "gae_lambda": 0.3}]


def test_a_target_kl_stops_an_iteration_and_not_the_next(tmp_path):
    result = train(
        tmp_path, env_id="CartPole-v1", total_timesteps=1500, target_kl=1e-4, learning_rate=0.01
    )
    lines = RunDirectory.open(result.run_dir).metrics()
    updates = [line["num_updates"] for line in lines]
    assert all(1 <= count < 8 for count in updates)
    # The mean includes only minibatches that were used.
    assert all(line["approx_kl"] <= 1.5e-4 for line in lines)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_minibatches": 3},
            r"must divide num_envs × num_steps = 8 × 128 = 1024, got 3: 2 does",
        ),
        ({"num_minibatches": 1000}, "1024 does"),
        ({"entropy_coef": -1.0}, "`entropy_coef` must be finite and not negative"),
        ({"target_kl": 0.0}, "`target_kl` must be positive"),
        ({"num_minibatches": 1024}, "have no standard deviation"),
    ],
)
def test_inconsistent_configurations(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**options)


# --- whole trainings -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_is_solved(tmp_path, seed):
    from hotloop.envs import make_vec
    from hotloop.rollouts.evaluation import evaluate

    config = ppo.Config(seed=seed, run_dir=str(tmp_path / "run"), total_timesteps=200_000)
    policy = ppo.train(config).policy.acting
    envs = make_vec(EnvSpec("CartPole-v1", seed=seed, stream="evaluation"), 10)
    returns = [e.undiscounted_return for e in evaluate(envs, policy, num_episodes=100)]
    assert np.mean(returns) >= 475


@pytest.mark.slow
def test_pendulum_learns(tmp_path):
    config = ppo.Config(
        env_id="Pendulum-v1",
        run_dir=str(tmp_path / "run"),
        total_timesteps=200_000,
        gamma=0.95,
    )
    first = []

    def record_first(report):
        if report.num_episodes >= 100 and not first:
            first.append(report.mean_return)

    result = ppo.train(config, on_report=record_first)
    assert first[0] < -900
    assert result.mean_return > -500
