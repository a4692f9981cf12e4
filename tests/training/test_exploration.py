"""Trainings with correlated noise, and with a user's own kind of exploration."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hotloop.algorithms import td3
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.policies import GaussianNoise, OrnsteinUhlenbeckNoise, PinkNoise
from hotloop.runs import RunDirectory
from tests.rollouts.threads_transport import ThreadEnvironments
from tests.training.test_train import assert_same_run

PAGE = Path(__file__).parents[2] / "docs" / "write-an-algorithm.md"
WANDERS = "tests.toy_envs:Wanders"
SMALL = {
    "env_id": WANDERS,
    "total_timesteps": 240,
    "learning_starts": 40,
    "batch_size": 16,
    "buffer_size": 500,
    "hidden_sizes": (8,),
    "report_interval": 60,
    "execution": "eager",
    "torch_threads": 1,
}


def make_config(path, **options):
    return td3.Config(**{**SMALL, **options}, run_dir=str(path))


def load_params(path):
    return RunDirectory.open(path).checkpoints.load().snapshot.params


def test_td3_has_three_kinds_of_noise():
    config = {"exploration_noise": 0.3, "learning_starts": 400, "num_envs": 4}
    for name, kind in (
        ("gaussian", GaussianNoise),
        ("ornstein_uhlenbeck", OrnsteinUhlenbeckNoise),
        ("pink", PinkNoise),
    ):
        exploration = td3.exploration(td3.Config(exploration=name, **config))
        assert exploration == kind(std=0.3, random_steps=100)
    assert td3.exploration(td3.Config(**config)) == GaussianNoise(std=0.3, random_steps=100)
    with pytest.raises(ConfigError, match="`exploration` 'pink' needs `exploration_noise`, got 0"):
        td3.Config(exploration="pink", exploration_noise=0.0)


def test_workers_learn_from_the_same_pink_noise(tmp_path, monkeypatch):
    """Episodes end in every worker at other steps."""
    options = {"exploration": "pink", "workers": 2, "num_envs": 4, "train_frequency": 5}
    td3.train(make_config(tmp_path / "inline", backend="inline", **options))
    monkeypatch.setattr("hotloop.rollouts.processes.pool.WorkerPool", ThreadEnvironments)
    td3.train(make_config(tmp_path / "threads", **options))
    expected = load_params(tmp_path / "inline")
    for name, array in load_params(tmp_path / "threads").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    td3.train(make_config(tmp_path / "white", **{**options, "exploration": "gaussian"}))
    assert any((x != expected[k]).any() for k, x in load_params(tmp_path / "white").items())


@pytest.mark.parametrize("kind", ["ornstein_uhlenbeck", "pink"])
def test_a_resumed_run_continues_the_noise_of_its_episodes(tmp_path, kind):
    options = {"exploration": kind, "num_envs": 2, "save_replay": True}
    td3.train(make_config(tmp_path / "whole", **options))
    parts = make_config(tmp_path / "parts", **options)
    td3.train(parts, on_report=lambda report: report.timesteps >= 120)
    td3.train(parts, resume_from=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_workers_import_the_exploration_of_a_users_file(tmp_path, monkeypatch):
    """Train the example of the docs from the command line, with workers and without."""
    names = ("my_noise", "my_td3")
    for name in names:
        (block,) = re.findall(
            rf"^```python\n(# {name}\.py\n.*?)^```", PAGE.read_text(), re.M | re.S
        )
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["train", "my_td3:algorithm", "--num-envs", "4", "--workers", "2"]
    for name, value in {**SMALL, "train_frequency": 10}.items():
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        command += [f"--{name.replace('_', '-')}", *text.split()]
    try:
        for backend in ("inline", "processes"):
            assert main([*command, "--backend", backend, "--run-dir", backend]) == 0
    finally:
        for name in names:
            sys.modules.pop(name, None)
    expected = load_params("inline")
    for name, array in load_params("processes").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
