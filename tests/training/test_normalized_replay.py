"""Normalized observations of SAC, TD3 and DQN, by current statistics, also in workers."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from hotloop import load
from hotloop.algorithms import dqn, sac
from hotloop.cli import main
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy
from hotloop.rollouts.evaluation import evaluate
from hotloop.runs import RunDirectory
from hotloop.training.replay import Replay
from tests import toy_envs
from tests.goal_envs import Reach
from tests.training.test_off_policy import (
    LONG,
    assert_same_weights,
    each_algorithm,
    make_config,
    train,
    watch,
)

SCALED = {"normalize_obs": True, "clip_obs": 2.0}


@pytest.fixture
def stored(monkeypatch):
    """Record all raw observations and next observations that a buffer stores."""
    rows = {"obs": [], "next_obs": []}
    store = Replay.store

    def record(self, fragment):
        for name, arrays in rows.items():
            array = getattr(fragment, name)
            arrays.append(array.reshape(-1, *array.shape[2:]).copy())
        store(self, fragment)

    monkeypatch.setattr(Replay, "store", record)
    return rows


@each_algorithm
def test_batches_are_scaled_by_current_statistics(tmp_path, monkeypatch, stored, algorithm):
    kinds, counts = set(), []

    def check(learner, batch, td_error):
        obs = np.concatenate(stored["obs"]).astype(np.float64)
        mean, std = obs.mean(0), np.sqrt(obs.var(0) + 1e-8)
        for name in ("obs", "next_obs"):
            raw = np.concatenate(stored[name])
            scaled = np.clip((raw - mean) / std, -2.0, 2.0)
            tensor = getattr(batch, name)
            distance = np.abs(tensor.numpy()[:, None] - scaled).max(2).min(1)
            assert distance.max() < 1e-4
            kinds.add((name, tensor.dtype, tensor.shape, tensor.stride()))
        counts.append(len(obs))

    watch(monkeypatch, check)
    options = {"total_timesteps": 90, "num_envs": 2, "batch_size": 8, **SCALED}
    train(algorithm, tmp_path, env_id=LONG[algorithm], **options)
    assert len(kinds) == 2  # one compilation fits all batches
    assert {kind[1] for kind in kinds} == {torch.float32}
    assert len(set(counts)) > 10


def test_statistics_continue_without_the_buffer(tmp_path):
    config = make_config(dqn, tmp_path, **SCALED)
    dqn.train(config, env=toy_envs.FarAway, on_report=lambda r: r.timesteps >= 100)
    checkpoints = RunDirectory.open(tmp_path / "run").checkpoints
    before = checkpoints.load().arrays()
    assert before["normalizer.obs.count"] == 100
    dqn.train(config, env=toy_envs.FarAway, resume_from=tmp_path / "run")
    assert checkpoints.load().arrays()["normalizer.obs.count"] == 200


def test_workers_act_with_the_published_statistics(tmp_path):
    options = {"workers": 2, "num_envs": 4, "env_id": LONG[sac], **SCALED}
    train(sac, tmp_path, name="workers", **options)
    train(sac, tmp_path, name="inline", backend="inline", **options)
    assert_same_weights(tmp_path / "workers", tmp_path / "inline")


def test_async_training_normalizes(tmp_path):
    options = {"workers": 2, "num_envs": 2, "schedule": "async", **SCALED}
    result = train(sac, tmp_path, env_id="Pendulum-v1", **options)
    scale = load(result.run_dir).snapshot.obs_scale
    assert scale is not None
    assert scale.std[2] > 3 * scale.std[0]  # an angle's speed, and its cosine


def test_rewards_of_goals_are_computed_before_observations_are_scaled(tmp_path, monkeypatch):
    env, records = Reach(), []
    spec = make_vec(Reach, 1).obs_spec

    def check(learner, batch, td_error):
        scale = records[0]()
        raw = spec.unflatten(batch.next_obs.numpy() * scale.std + scale.mean)
        distance = np.linalg.norm(raw["achieved_goal"] - raw["desired_goal"], axis=-1)
        is_clear = np.abs(distance - env.near) > 1e-4
        expected = -(distance > env.near).astype(np.float32)
        np.testing.assert_array_equal(batch.reward.numpy()[is_clear], expected[is_clear])
        records.append(bool((distance < 1e-4).any()))  # relabeled: the goal just reached

    draw = Replay.draw

    def record_scale(self, count, scale=None):
        records[:1] = [lambda: scale]
        return draw(self, count, scale)

    monkeypatch.setattr(Replay, "draw", record_scale)
    watch(monkeypatch, check)
    train(sac, tmp_path, env=Reach, hindsight="future", normalize_obs=True, clip_obs=None)
    assert any(records[1:])


def test_normalization_is_learned_saved_and_exported(tmp_path, capsys):
    """Observations of 1000 ± 0.01 are useless without scaling."""
    onnxruntime = pytest.importorskip("onnxruntime")
    result = train(
        dqn,
        tmp_path,
        env_id="tests.toy_envs:FarAway",
        normalize_obs=True,
        total_timesteps=1200,
        learning_rate=1e-2,
        update_to_data=0.5,
        target_interval=20,
    )
    run = str(result.run_dir)
    assert main(["eval", run, "--episodes", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_return"] == 1.0
    network, snapshot, _ = RunDirectory.open(result.run_dir).load_policy()
    unscaled = ActingPolicy(network, dataclasses.replace(snapshot, obs_scale=None))
    envs = make_vec(EnvSpec(toy_envs.FarAway, stream="evaluation"), 4)
    returns = [e.undiscounted_return for e in evaluate(envs, unscaled, num_episodes=50)]
    assert np.mean(returns) < 0.8
    obs = np.array([[1000.01], [999.99]], np.float32)
    expected = load(run).act(obs)
    np.testing.assert_array_equal(expected, [1, 0])
    assert main(["export", run, "--format", "onnx", "--output", str(tmp_path / "p.onnx")]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    action, *_ = session.run(None, {session.get_inputs()[0].name: obs})
    np.testing.assert_array_equal(action, expected)
    assert main(["export", run, "--format", "numpy", "--output", str(tmp_path / "p.npz")]) == 0
    code = "import numpy, p; print(p.Policy('p.npz').act(numpy.float32([[1000.01], [999.99]])))"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert completed.stdout.strip() == "[1 0]", completed.stderr


@pytest.mark.parametrize("options", [{"normalize_obs": True}, {"clip_obs": 10.0}])
def test_images_beside_numbers_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="also hold images: leave them out"):
        train(dqn, tmp_path, env_id="tests.toy_images:Signs", **options)
