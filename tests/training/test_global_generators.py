"""Environments that draw from global generators repeat a run of one seed."""

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.envs import seed_global_generators
from hotloop.runs import RunDirectory
from hotloop.training.trained_policy import evaluate

SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden_sizes": (8,),
    "total_timesteps": 128,
    "execution": "eager",
    "env_id": "tests.global_envs:DrawsGlobally",
}


def train(tmp_path, name, on_report=None, **options):
    config = ppo.Config(**{**SMALL, "run_dir": str(tmp_path / name), **options})
    return ppo.train(config, on_report=on_report)


def weights(tmp_path, name):
    params = RunDirectory.open(tmp_path / name).load_policy()[1].params
    return np.concatenate([params[name].ravel() for name in sorted(params)])


def test_one_seed_is_one_run(tmp_path):
    train(tmp_path, "a")
    seed_global_generators("another state of the caller")
    train(tmp_path, "b")
    train(tmp_path, "evaluated", eval_interval=64, eval_episodes=2)
    train(tmp_path, "other", seed=2)
    np.testing.assert_array_equal(weights(tmp_path, "a"), weights(tmp_path, "b"))
    assert (weights(tmp_path, "a") != weights(tmp_path, "other")).any()
    # Evaluations change no later draw of the training, and repeat their own.
    np.testing.assert_array_equal(weights(tmp_path, "a"), weights(tmp_path, "evaluated"))
    results = [evaluate(tmp_path / "a", episodes=3).episodes for _ in range(2)]
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["SamplesSpaces", "make_wrapped"])
def test_environments_that_sample_from_their_spaces_repeat_a_run(tmp_path, name):
    for run in ("a", "b"):
        train(tmp_path, run, env_id=f"tests.global_envs:{name}")
    np.testing.assert_array_equal(weights(tmp_path, "a"), weights(tmp_path, "b"))


def test_workers_draw_differently_and_repeat_their_run(tmp_path):
    for name in ("a", "b"):
        train(tmp_path, name, workers=2, num_envs=2)
    np.testing.assert_array_equal(weights(tmp_path, "a"), weights(tmp_path, "b"))
    returns = RunDirectory.open(tmp_path / "a").metrics()[0]["episode_returns"]
    assert len(set(returns)) == len(returns) > 2


def test_a_resume_names_the_reason_of_restarts(tmp_path):
    train(tmp_path, "run", lambda report: report.timesteps >= 64)
    reports = []
    ppo.train(
        ppo.Config(**SMALL, run_dir=str(tmp_path / "run")),
        resume_from=tmp_path / "run",
        on_report=reports.append,
    )
    assert "of 4 environments can't be replayed and restart: with the same" in reports[0].resumed
    assert "a global random generator instead of `self.np_random`" in reports[0].resumed
