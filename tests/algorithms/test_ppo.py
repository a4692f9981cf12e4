import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from threadpoolctl import threadpool_info

from hotloop.algorithms import ppo
from hotloop.errors import ConfigError, EnvironmentFailure, NonFiniteError, UnknownNameError
from hotloop.policies import ActorCritic
from hotloop.runs import RunDirectory
from tests import toy_envs
from tests.policies.test_policies import BOX, DISCRETE, obs_spec
from tests.reference import ppo as reference

SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "update_epochs": 4}


def params_of(result):
    return RunDirectory.open(result.run_dir).load_policy()[1].params


def train(tmp_path, env=None, name="run", on_report=None, **options):
    config = ppo.Config(run_dir=str(tmp_path / name), **{**SMALL, **options})
    return ppo.train(config, env=env, on_report=on_report)


# --- the update ----------------------------------------------------------------------------------


@pytest.mark.parametrize("action_spec", [DISCRETE, BOX])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_value_loss": True, "entropy_coef": 0.1, "max_grad_norm": 0.05},
        {"target_kl": 0.001, "learning_rate": 0.01},
    ],
)
def test_update_is_the_usual_one(action_spec, options):
    """100 minibatches, beside modules and torch's own Adam."""
    config = ppo.Config(**{**SMALL, "update_epochs": 50, "compile": "off", **options})
    network = ActorCritic(obs_spec=obs_spec(4), action_spec=action_spec, hidden_sizes=(16, 16))
    params = network.initial_parameters(0)
    rng = np.random.default_rng(0)
    peer = reference.Networks(network, params)
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

    learner = ppo.Learner(config, network)
    learner.state.params.copy_(learner.layout.pack(params))
    learner.rng = np.random.default_rng(7)
    fields = batch._asdict().items()
    metrics = learner.learn({name: x.numpy() for name, x in fields if x is not None})

    orders_rng = np.random.default_rng(7)
    orders = [torch.from_numpy(orders_rng.permutation(size)) for _ in range(config.update_epochs)]
    optimizer = torch.optim.Adam(peer.parameters(), lr=config.learning_rate, eps=1e-5)
    steps = reference.learn(peer, optimizer, batch, orders, config)

    assert learner.state.adam.step.item() == steps
    assert steps == 100 if config.target_kl is None else 0 < steps < 100
    assert metrics["num_updates"] == steps
    assert np.isfinite(list(metrics.values())).all()
    ours = learner.snapshot(1, None).params
    for name, theirs in peer.numpy().items():
        np.testing.assert_allclose(ours[name], theirs, rtol=2e-3, atol=2e-5, err_msg=name)
        if "policy" in name:
            assert not np.array_equal(ours[name], params[name])


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "best"),
    [
        (toy_envs.ChooseTheSign, 1.0),
        (toy_envs.MultiSign, 2.0),
        (toy_envs.ReachTheTarget, 0.0),
    ],
)
def test_learns_each_kind_of_action(tmp_path, env, best):
    result = train(tmp_path, env, total_timesteps=8_000, learning_rate=3e-3, update_epochs=10)
    assert result.status == "finished"
    assert result.mean_return > best - 0.15
    single = env()
    returns = []
    for seed in range(50):
        obs, _ = single.reset(seed=seed)
        returns.append(single.step(result.policy.act(obs))[1])
    assert np.mean(returns) > best - 0.02


def test_one_seed_one_run(tmp_path):
    options = {"env_id": "CartPole-v1", "total_timesteps": 1500}
    first = params_of(train(tmp_path, name="a", seed=5, **options))
    again = params_of(train(tmp_path, name="b", seed=5, **options))
    other = params_of(train(tmp_path, name="c", seed=6, **options))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["policy.0.weight"], other["policy.0.weight"])


def test_the_run_directory_tells_the_run(tmp_path):
    reports = []
    result = train(tmp_path, env_id="CartPole-v1", total_timesteps=1000, on_report=reports.append)
    assert result.timesteps == 1024  # whole iterations of 128
    run = RunDirectory.open(result.run_dir)
    assert run.config["config"]["total_timesteps"] == 1000
    lines = run.metrics()
    assert [line["timesteps"] for line in lines] == list(range(128, 1025, 128))
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, [1e-3 * (1 - 0.128 * k) for k in range(8)], rtol=1e-5)
    assert set(ppo.METRICS) < set(lines[0])
    assert sum(len(line["episode_returns"]) for line in lines) == reports[-1].num_episodes > 10
    assert [report.timesteps for report in reports] == list(range(0, 1025, 128))
    assert reports[-1].mean_return == pytest.approx(result.mean_return)
    _, snapshot, state = run.load_policy()
    assert state["timesteps"] == 1024
    assert snapshot.version == 8
    obs = np.array([[0.01, -0.02, 0.03, 0.04]], np.float32)
    np.testing.assert_array_equal(result.policy.network.obs_spec.shape, (4,))
    assert result.policy.act(obs).shape == (1,)
    assert len(list((run.path / "timing").iterdir())) == 1


def test_on_report_stops(tmp_path):
    result = train(
        tmp_path,
        env_id="CartPole-v1",
        total_timesteps=10_000,
        on_report=lambda report: report.timesteps >= 256,
    )
    assert result.status == "stopped"
    assert result.timesteps == 256
    assert RunDirectory.open(result.run_dir).load_policy()[2]["timesteps"] == 256


def test_interrupt_keeps_what_was_learned(tmp_path):
    kwargs = {"how": "interrupt", "at": 100}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    run = RunDirectory.open(tmp_path / "run")
    assert [line["timesteps"] for line in run.metrics()] == [128, 256, 384]
    _, snapshot, state = run.load_policy()
    assert snapshot.version == 3
    assert state["timesteps"] == 384


def spoil(monkeypatch, call, learn_again):
    """Let `learn_again` happen in place of the `call`-th `Learner.learn`."""
    learn, calls = ppo.Learner.learn, []

    def spoiled(self, fields):
        calls.append(1)
        return learn_again(self, fields, learn) if len(calls) == call else learn(self, fields)

    monkeypatch.setattr(ppo.Learner, "learn", spoiled)


def test_parameters_that_are_not_finite_are_never_published(tmp_path, monkeypatch):
    """The last step of an iteration may spoil what no loss has seen yet."""

    def last_step_overflows(learner, fields, learn):
        step = learner.step
        calls = []

        def run(state, *args):
            metrics = step(state, *args)
            calls.append(1)
            if len(calls) == 8:
                state.params[3] = float("inf")
            return metrics

        learner.step = run
        return learn(learner, fields)

    spoil(monkeypatch, 2, last_step_overflows)
    what = "update 8 of iteration 2 gave NaN or infinity in the parameters"
    with pytest.raises(NonFiniteError, match=what):
        train(tmp_path, env_id="CartPole-v1", total_timesteps=10_000)
    params = RunDirectory.open(tmp_path / "run").load_policy()[1].params
    assert all(np.isfinite(array).all() for array in params.values())


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_a_policy_that_diverged_is_not_blamed_on_the_environment(tmp_path):
    options = {"num_minibatches": 1, "update_epochs": 1, "learning_rate": 1e38}
    with pytest.raises(NonFiniteError, match="the policy's outputs must be finite"):
        train(tmp_path, toy_envs.ReachTheTarget, total_timesteps=10_000, **options)


def test_an_interrupted_update_is_not_counted(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    spoil(monkeypatch, 3, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, env_id="CartPole-v1", total_timesteps=10_000)
    _, snapshot, state = RunDirectory.open(tmp_path / "run").load_policy()
    assert snapshot.version == 2
    assert state["timesteps"] == 256  # of 384 collected


def test_nothing_is_left_of_a_run_that_fails_before_its_first_iteration(tmp_path):
    kwargs = {"how": "raises", "at": 5}
    with pytest.raises(EnvironmentFailure, match=r"diverged \(toy_envs.py:\d+\)"):
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    assert not (tmp_path / "run").exists()


def test_the_first_error_is_the_one_that_is_seen(tmp_path):
    class FailsTwice(toy_envs.Misbehaves):
        def close(self):
            raise RuntimeError("and close fails too")

    with pytest.raises(EnvironmentFailure, match="the simulator diverged"):
        train(tmp_path, FailsTwice, total_timesteps=10_000)


def test_trains_where_resets_cost_a_step(tmp_path):
    """Next-step autoreset: rows that are no transitions are neither counted nor learned from."""
    result = train(
        tmp_path,
        toy_envs.next_step_signs,
        env_kwargs={"num_envs": 4},
        total_timesteps=6_000,
        learning_rate=3e-3,
        update_epochs=10,
    )
    assert result.mean_return > 0.85
    lines = RunDirectory.open(result.run_dir).metrics()
    # Episodes of one step: every other row is a reset.
    assert lines[0]["timesteps"] == 64
    assert all(len(line["episode_returns"]) == 64 for line in lines)


@pytest.mark.parametrize("count", [1, 2])
def test_torch_uses_the_threads_it_was_given_and_numpy_one(tmp_path, count):
    def threads():
        blas = [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"]
        return (torch.get_num_threads(), *blas)

    torch.set_num_threads(3 - count)
    before, seen = threads(), []
    train(
        tmp_path,
        env_id="CartPole-v1",
        total_timesteps=100,
        torch_threads=count,
        on_report=lambda _: seen.append(threads()),
    )
    assert len(before) > 1
    assert set(seen) == {(count, *[1] * (len(before) - 1))}  # acting is never shared out
    assert threads() == before


def test_policies_carry_the_version_that_acted(tmp_path, monkeypatch):
    seen = []
    flatten = ppo.to_batch

    def watched(fragments, *rest):
        seen.append(fragments[0].policy_version)
        return flatten(fragments, *rest)

    monkeypatch.setattr(ppo, "to_batch", watched)
    result = train(tmp_path, env_id="CartPole-v1", total_timesteps=384)
    assert seen == [0, 1, 2]
    assert result.policy.version == 3


def test_discount_and_lambda_reach_the_advantages(tmp_path, monkeypatch):
    seen = []
    gae = ppo.gae
    monkeypatch.setattr(ppo, "gae", lambda *args, **kw: (seen.append(kw), gae(*args, **kw))[1])
    train(tmp_path, env_id="CartPole-v1", total_timesteps=100, gamma=0.7, gae_lambda=0.3)
    assert seen == [{"gamma": 0.7, "gae_lambda": 0.3}]


def test_a_target_kl_stops_an_iteration_and_not_the_next(tmp_path):
    result = train(
        tmp_path, env_id="CartPole-v1", total_timesteps=1500, target_kl=1e-4, learning_rate=0.01
    )
    lines = RunDirectory.open(result.run_dir).metrics()
    updates = [line["num_updates"] for line in lines]
    assert all(1 <= count < 8 for count in updates)
    # Only minibatches that counted are in the mean.
    assert all(line["approx_kl"] <= 1.5e-4 for line in lines)


def test_a_failing_environment_keeps_what_was_learned(tmp_path):
    kwargs = {"how": "nan_obs", "at": 70}
    with pytest.raises(EnvironmentFailure, match="environment 0"):
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    assert RunDirectory.open(tmp_path / "run").load_policy()[1].version == 2


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_its_batch(tmp_path):
    kwargs = {"how": "huge_reward", "at": 70}
    what = r"update (\d) of iteration 3 gave NaN or infinity in .*value_loss.*kept in (.*)$"
    with pytest.raises(NonFiniteError, match=what) as caught:
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    run = RunDirectory.open(tmp_path / "run")
    assert all(np.isfinite(array).all() for array in run.load_policy()[1].params.values())
    update, path = re.search(what, str(caught.value)).groups()
    batch = load_file(path)
    assert batch["obs"].shape == (64, 2)
    # The reward of 1e38 reaches the steps before it: the first minibatch holds one already.
    assert int(update) == 1
    assert batch["returns"].max() > 1e37


def test_a_loss_that_is_not_finite_at_once_keeps_its_batch_too(tmp_path):
    kwargs = {"how": "huge_reward", "at": 3}
    with pytest.raises(NonFiniteError, match="of iteration 1 gave") as caught:
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    assert load_file(str(caught.value).rpartition(" ")[2])["obs"].shape == (64, 2)


def test_gradients_are_taken_wherever_training_is_called_from(tmp_path):
    with torch.no_grad():
        assert train(tmp_path, env_id="CartPole-v1", total_timesteps=100).status == "finished"


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_minibatches": 3},
            r"must divide num_envs × num_steps = 8 × 128 = 1024, got 3: 2 does",
        ),
        ({"num_minibatches": 1000}, "1024 does"),
        ({"num_envs": 0}, "`num_envs` must be a positive integer, got 0"),
        ({"num_envs": 2.0}, "`num_envs` must be a positive integer, got 2.0"),
        ({"total_timesteps": "100"}, "`total_timesteps` must be a positive integer, got '100'"),
        ({"gamma": 1.5}, r"`gamma` must lie in \[0, 1\], got 1.5"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be positive and finite, got nan"),
        ({"learning_rate": float("inf")}, "`learning_rate` must be positive and finite, got inf"),
        ({"entropy_coef": -1.0}, "`entropy_coef` must be finite and not negative"),
        ({"target_kl": 0.0}, "`target_kl` must be positive"),
        ({"seed": -1}, "`seed` must be an integer in"),
        ({"hidden_sizes": (64, 0)}, "`hidden_sizes` must be positive integers, got"),
        ({"hidden_sizes": 64}, "`hidden_sizes` must be positive integers, got 64"),
        ({"activation": "gelu"}, "`activation` must be 'tanh' or 'relu', got 'gelu'"),
        ({"env_kwargs": {"f": print}}, "`env_kwargs` must be a dict that JSON can hold"),
        ({"num_minibatches": 1024}, "have no standard deviation"),
        ({"run_dir": ""}, "`run_dir` must be the path of a new directory"),
        ({"network": "nets:Net", "hidden_sizes": (8,)}, "has layers of its own: leave"),
        ({"clip_obs": 0.0}, "`clip_obs` must be positive and finite, got 0.0"),
        ({"eval_interval": 0}, "`eval_interval` must be a positive integer, got 0"),
        ({"keep_checkpoints": -1}, "`keep_checkpoints` must be an integer ≥ 0, got -1"),
        ({"track": ("mlflow",)}, "`track` must name 'tensorboard', 'wandb' or both"),
        ({"eval_videos": True}, "`eval_videos` films evaluations: set `eval_interval` too"),
    ],
)
def test_inconsistent_configurations(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**options)


def test_nothing_is_written_before_a_bad_environment_is_found(tmp_path):
    with pytest.raises(UnknownNameError, match="CartPole-v1"):
        train(tmp_path, env_id="CartPol-v1")
    assert not (tmp_path / "run").exists()


def test_configurations_are_json(tmp_path):
    result = train(tmp_path, toy_envs.ChooseTheSign, total_timesteps=128)
    saved = json.loads((result.run_dir / "config.json").read_text())
    assert saved["env_id"] == "tests.toy_envs:ChooseTheSign"
    assert saved["config"]["hidden_sizes"] == [64, 64]


# --- whole trainings -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_cartpole_is_solved(tmp_path, seed):
    from hotloop.envs import make_vec
    from hotloop.rollouts.evaluation import evaluate

    config = ppo.Config(seed=seed, run_dir=str(tmp_path / "run"), total_timesteps=200_000)
    policy = ppo.train(config).policy
    envs = make_vec("CartPole-v1", 10, seed=seed, stream="evaluation")
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

    def note(report):
        if report.num_episodes >= 100 and not first:
            first.append(report.mean_return)

    result = ppo.train(config, on_report=note)
    assert first[0] < -900
    assert result.mean_return > -500
