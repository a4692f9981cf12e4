"""Training with environments that step on the device: seeds, resume, evaluation, bad options."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import hotloop
from hotloop.algorithms import dqn, ppo
from hotloop.cli import main
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.runs import RunDirectory
from tests.envs.device import toys
from tests.training.test_train import assert_same_run

TOYS = "tests.envs.device.toys"
SMALL = {
    "num_envs": 16,
    "num_steps": 12,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden_sizes": (16,),
    "execution": "eager",
    "total_timesteps": 1152,  # six iterations
    "checkpoint_interval": 192,
}
NORMALIZED = {
    "normalize_obs": True,
    "normalize_reward": True,
    "clip_obs": 5.0,
    "clip_reward": 5.0,
    "eval_interval": 400,
    "eval_episodes": 3,
}


def config(tmp_path, name="run", env_id="hotloop:CartPole", **options):
    return ppo.Config(run_dir=str(tmp_path / name), env_id=env_id, **{**SMALL, **options})


def test_run_directory_holds_the_results(tmp_path):
    reports = []
    result = ppo.train(config(tmp_path), on_report=reports.append)
    run = RunDirectory.open(result.run_dir)
    lines = run.metrics()
    assert [line["timesteps"] for line in lines] == list(range(192, 1153, 192))
    assert {"policy_loss", "explained_variance", "grad_norm"} < set(lines[0])
    assert sum(len(line["episode_returns"]) for line in lines) == reports[-1].num_episodes > 20
    assert all(line["episode_returns"] == line["episode_lengths"] for line in lines)
    assert result.timing.find("collect", "block").count == 12  # of six steps each
    assert result.accounting["collected"] == result.accounting["trained"] == 1152
    assert [line.partition(":")[0] for line in result.execution.split("\n")] == [
        "update",
        "rollout",
    ]
    # The returned policy is the trained one.
    obs = np.ones((2, 4), np.float32)
    head = hotloop.load(result.run_dir).head(obs)
    np.testing.assert_array_equal(result.policy.head(obs), head)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("hotloop:CartPole", NORMALIZED),
        (f"{TOYS}:counting", {}),
        (f"{TOYS}:stateful", NORMALIZED),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, env_id, options):
    whole = ppo.train(config(tmp_path, "whole", env_id, **options))
    parts = config(tmp_path, "parts", env_id, **options)
    ppo.train(parts, on_report=lambda report: report.timesteps >= 500)
    reports = []
    result = ppo.train(parts, resume_from=tmp_path / "parts", on_report=reports.append)
    assert reports[0].resumed == "resumed at 576 steps"
    assert_same_run(whole.run_dir, result.run_dir)


def test_environments_without_a_state_restart_their_episodes(tmp_path):
    options = config(tmp_path, env_id=f"{TOYS}:stateful", env_kwargs={"tells_state": False})
    ppo.train(options, on_report=lambda report: report.timesteps >= 500)
    reports = []
    ppo.train(options, resume_from=tmp_path / "run", on_report=reports.append)
    assert "episodes of 16 of 16 environments can't be replayed" in reports[0].resumed


def test_evaluation_and_the_command_line(tmp_path, capsys):
    result = ppo.train(config(tmp_path, eval_interval=600, eval_episodes=3))
    evaluations = [line["evaluation"] for line in result_lines(result) if "evaluation" in line]
    assert [len(x["returns"]) for x in evaluations] == [3, 3]
    again = [hotloop.evaluate(result.run_dir, episodes=5).returns for _ in range(2)]
    assert again[0] == again[1]
    assert main(["eval", str(result.run_dir), "--episodes", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["returns"]) == 4


def result_lines(result):
    return RunDirectory.open(result.run_dir).metrics()


def test_policy_trained_on_the_device_plays_gymnasium(tmp_path):
    result = ppo.train(config(tmp_path))
    played = hotloop.evaluate(result.run_dir, "CartPole-v1", episodes=2)
    assert len(played.returns) == 2


def test_a_factory_from_python(tmp_path):
    result = ppo.train(config(tmp_path, env_kwargs={"length": 4}), env=toys.counting)
    lengths = {x for line in result_lines(result) for x in line["episode_lengths"]}
    assert lengths == {4}


def test_custom_algorithm_gets_tensors(tmp_path):
    kinds = set()

    def prepare(fragment, hyper, config):
        batch = ppo.prepare(fragment, hyper, config)
        kinds.update(type(x).__name__ for x in batch if x is not None)
        return batch

    algorithm = dataclasses.replace(ppo.algorithm, prepare=prepare)
    algorithm.train(config(tmp_path, total_timesteps=192), progress=False)
    assert kinds == {"Tensor"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2}, "needs no `workers`, got 2"),
        ({"workers": "auto"}, "needs no `workers`, got 'auto'"),
        ({"action_masks": True}, "has no action masks"),
        ({"memory": "gru:8"}, "recurrent networks are not supported yet"),
        ({"log_info": ("x",)}, "has no `info`"),
        ({"eval_videos": True, "eval_interval": 100}, "renders no images"),
    ],
)
def test_unsupported_options_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=rf"hotloop:CartPole steps on the device.*{message}"):
        ppo.train(config(tmp_path, **options))
    assert not (tmp_path / "run").exists()


def test_learning_from_replay_is_refused(tmp_path):
    options = dqn.Config(env_id="hotloop:CartPole", run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="only learns from environments on the host: train ppo"):
        dqn.train(options)


def test_another_device_than_the_learners_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="learner's device, cpu, but their tensors are on meta"):
        ppo.train(config(tmp_path, env_id=f"{TOYS}:elsewhere"))


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'hotloop:CartPole'"):
        ppo.train(config(tmp_path, env_id="hotloop:Cartpole"))


@pytest.mark.slow
def test_ppo_learns_on_device_environments(tmp_path):
    options = {"num_envs": 256, "num_steps": 16, "num_minibatches": 4, "update_epochs": 4}
    options |= {"hidden_sizes": (64, 64), "execution": "auto", "total_timesteps": 120_000}
    result = ppo.train(config(tmp_path, **options))
    # A random policy gets 22; five seeds gave 246 … 485.
    assert hotloop.evaluate(result.run_dir, episodes=20).mean_return > 150


@pytest.mark.gpu
def test_training_on_a_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    result = ppo.train(config(tmp_path, device="cuda"))
    assert result.timesteps == 1152
    assert hotloop.evaluate(result.run_dir, episodes=2).returns
