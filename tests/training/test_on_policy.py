"""The on-policy loop with PPO: reports, versions, threads, failures."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from threadpoolctl import threadpool_info

from hotloop.algorithms import ppo
from hotloop.errors import EnvironmentFailure, NonFiniteError, UnknownNameError
from hotloop.learner import Learner
from hotloop.runs import RunDirectory
from hotloop.training import on_policy
from tests import toy_envs

METRICS = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"}
SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "update_epochs": 4}


def params_of(result):
    return RunDirectory.open(result.run_dir).load_policy()[1].params


def train(tmp_path, env=None, name="run", on_report=None, **options):
    config = ppo.Config(run_dir=str(tmp_path / name), **{**SMALL, **options})
    return ppo.train(config, env=env, on_report=on_report)


def test_run_directory_holds_the_results(tmp_path):
    reports = []
    result = train(tmp_path, env_id="CartPole-v1", total_timesteps=1000, on_report=reports.append)
    assert result.timesteps == 1024  # whole iterations of 128
    run = RunDirectory.open(result.run_dir)
    assert run.config["config"]["total_timesteps"] == 1000
    lines = run.metrics()
    assert [line["timesteps"] for line in lines] == list(range(128, 1025, 128))
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, [1e-3 * (1 - 0.128 * k) for k in range(8)], rtol=1e-5)
    assert set(lines[0]) > METRICS
    assert sum(len(line["episode_returns"]) for line in lines) == reports[-1].num_episodes > 10
    assert sorted({report.timesteps for report in reports}) == list(range(0, 1025, 128))
    assert reports[-1].mean_return == pytest.approx(result.mean_return)
    _, snapshot, state = run.load_policy()
    assert state["timesteps"] == 1024
    assert snapshot.version == 8
    obs = np.array([[0.01, -0.02, 0.03, 0.04]], np.float32)
    np.testing.assert_array_equal(result.policy.network.obs_spec.shape, (4,))
    assert result.policy.act(obs).shape == (1,)
    assert len(list((run.path / "timing").iterdir())) == 1


def run_after_minibatch(monkeypatch, call, action):
    """Call `action(learner)` after the `call`-th minibatch."""
    update = Learner.update

    def update_and_act(self, batch):
        result = update(self, batch)
        if self.num_updates == call:
            action(self)
        return result

    monkeypatch.setattr(Learner, "update", update_and_act)


def test_parameters_that_are_not_finite_are_never_published(tmp_path, monkeypatch):
    """The last step of an iteration may produce values that no loss has used yet."""

    def overflow(learner):
        learner.state.params[3] = float("inf")

    run_after_minibatch(monkeypatch, 16, overflow)  # the last of the second iteration
    message = "update 8 of iteration 2 gave NaN or infinity in params: lower"
    with pytest.raises(NonFiniteError, match=message):
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

    run_after_minibatch(monkeypatch, 20, interrupt)  # in the middle of the third iteration
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


def test_first_error_is_raised(tmp_path):
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
        total_timesteps=2_000,
        learning_rate=1e-2,
    )
    assert result.mean_return > 0.85
    lines = RunDirectory.open(result.run_dir).metrics()
    # Episodes of one step: every other row is a reset.
    assert lines[0]["timesteps"] == 64
    assert all(len(line["episode_returns"]) == 64 for line in lines)


@pytest.mark.parametrize("count", [1, 2])
def test_torch_threads_are_limited_and_numpy_uses_one(tmp_path, count, request):
    def count_threads():
        blas = [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"]
        return (torch.get_num_threads(), *blas)

    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(3 - count)
    before, counts = count_threads(), []
    train(
        tmp_path,
        env_id="CartPole-v1",
        total_timesteps=100,
        torch_threads=count,
        on_report=lambda _: counts.append(count_threads()),
    )
    assert len(before) > 1
    assert set(counts) == {(count, *[1] * (len(before) - 1))}  # acting uses one thread
    assert count_threads() == before


def test_policies_carry_the_version_that_acted(tmp_path, monkeypatch):
    versions = []
    flatten = on_policy.to_batch

    def record_version(fragments, *args):
        versions.append(fragments[0].policy_version)
        return flatten(fragments, *args)

    monkeypatch.setattr(on_policy, "to_batch", record_version)
    result = train(tmp_path, env_id="CartPole-v1", total_timesteps=384)
    assert versions == [0, 1, 2]
    assert result.policy.version == 3


def test_a_failing_environment_keeps_what_was_learned(tmp_path):
    kwargs = {"how": "nan_obs", "at": 70}
    with pytest.raises(EnvironmentFailure, match="environment 0"):
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    assert RunDirectory.open(tmp_path / "run").load_policy()[1].version == 2


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_its_batch(tmp_path):
    kwargs = {"how": "huge_reward", "at": 70}
    message = r"update (\d) of iteration 3 gave NaN or infinity in .*value_loss.*saved in (.*)$"
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs, total_timesteps=10_000)
    run = RunDirectory.open(tmp_path / "run")
    assert all(np.isfinite(array).all() for array in run.load_policy()[1].params.values())
    update, path = re.search(message, str(caught.value)).groups()
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


def test_the_failure_of_each_step_is_the_cause_of_an_empty_fragment(tmp_path):
    message = r"no step of the last fragments succeeded: worker \d: .*the simulator diverged"
    with (
        pytest.warns(RuntimeWarning, match="similar failures are only counted"),
        pytest.raises(EnvironmentFailure, match=message),
    ):
        train(tmp_path, toy_envs.Misbehaves, env_kwargs={"at": 1}, workers=1, num_steps=8)


def test_training_works_under_no_grad(tmp_path):
    with torch.no_grad():
        assert train(tmp_path, env_id="CartPole-v1", total_timesteps=100).status == "finished"


def test_nothing_is_written_before_a_bad_environment_is_found(tmp_path):
    with pytest.raises(UnknownNameError, match="CartPole-v1"):
        train(tmp_path, env_id="CartPol-v1")
    assert not (tmp_path / "run").exists()


def test_configurations_are_json(tmp_path):
    result = train(tmp_path, toy_envs.ChooseTheSign, total_timesteps=128)
    saved = json.loads((result.run_dir / "config.json").read_text())
    assert saved["env_id"] == "tests.toy_envs:ChooseTheSign"
    assert saved["config"]["hidden_sizes"] == [64, 64]
