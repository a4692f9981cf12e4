"""Runs that start from another run's policy, or continue it in a new directory."""

import json
import shutil

import gymnasium
import numpy as np
import pytest

from hotloop.algorithms import dqn, ppo, sac, td3
from hotloop.errors import CheckpointError, ConfigError, RunDirectoryError
from hotloop.runs import RunDirectory
from tests import toy_envs

SMALL = {
    "env_id": toy_envs.ChooseTheSign,
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden_sizes": (4,),
    "execution": "eager",
    "learning_rate": 0.01,
    "normalize_obs": True,
    "total_timesteps": 32,
}


def train(path, resume_from=None, **options):
    config = ppo.Config(**{**SMALL, "run_dir": path, **options})
    return ppo.train(config, resume_from=resume_from, progress=False).run_dir


def arrays(run, checkpoint="last"):
    return dict(RunDirectory.open(run).checkpoints.load(checkpoint).arrays())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return train(tmp_path_factory.mktemp("source") / "run", seed=5)


def test_weights_and_statistics_of_another_run(source, tmp_path, monkeypatch):
    """Without learning, the new run has the parameters of the other one."""
    options = {"learning_rate": "linear:1e-30,0", "num_envs": 4, "total_timesteps": 32}
    initial = str(source / "checkpoints" / "last")
    tuned = train(tmp_path / "tuned", init_from=initial, **options)
    before, after = arrays(source), arrays(tuned)
    np.testing.assert_array_equal(after["state.params"], before["state.params"])
    assert after["state.adam.step"] == before["state.adam.step"] + 1
    # The statistics continue: the old rows and those of the new run.
    assert after["normalizer.obs.count"] == before["normalizer.obs.count"] + 32
    run = RunDirectory.open(tuned)
    assert run.config["config"]["init_from"] == initial
    assert run.metrics()[0]["timesteps"] == 32


def test_statistics_of_rewards_are_not_taken_over(tmp_path):
    first = train(tmp_path / "first", normalize_reward=True)
    second = train(tmp_path / "second", normalize_reward=True, init_from=str(first))
    first_count, second_count = (arrays(x)["normalizer.returns.count"] for x in (first, second))
    assert second_count == first_count


def test_other_critics_are_refused(tmp_path):
    options = {"hidden_sizes": (4,), "learning_starts": 8, "batch_size": 8, "total_timesteps": 10}
    options |= {"execution": "eager", "progress": False}
    first = td3.train("Pendulum-v1", run_dir=tmp_path / "first", **options).run_dir
    options |= {"init_from": str(first), "layer_norm": True}
    with pytest.raises(CheckpointError, match=r"other options of it, so use those, or leave `init"):
        td3.train("Pendulum-v1", run_dir=tmp_path / "second", **options)


def test_a_refused_resume_leaves_no_directory(source, tmp_path):
    for path, steps, error, message in (
        (source, 32, ConfigError, "is finished"),
        (source / "checkpoints" / "step-7", 48, CheckpointError, "step-7"),
    ):
        with pytest.raises(error, match=message):
            train(tmp_path / "copy", resume_from=path, seed=5, total_timesteps=steps)
        assert not (tmp_path / "copy").exists()


def test_a_copy_that_fails_is_removed(source, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("full")

    monkeypatch.setattr("hotloop.training.forking.shutil.copytree", fail)
    with pytest.raises(OSError, match="full"):
        train(tmp_path / "copy", resume_from=source, seed=5, total_timesteps=48)
    assert not (tmp_path / "copy").exists()


def test_a_copy_whose_environment_does_not_fit_is_removed(source, tmp_path, monkeypatch):
    """The run itself stays, and continues when its environment is back."""
    space = gymnasium.spaces.Box(-1, 1, (7,), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(toy_envs.ChooseTheSign, "observation_space", space)
        with pytest.raises(CheckpointError, match="the checkpoint's obs_spec is"):
            train(tmp_path / "copy", resume_from=source, seed=5, total_timesteps=48)
    assert not (tmp_path / "copy").exists()
    train(tmp_path / "copy", resume_from=source, seed=5, total_timesteps=48)


def test_a_run_whose_metrics_were_moved_away_is_copied(source, tmp_path):
    shutil.copytree(source, tmp_path / "moved", symlinks=True)
    (tmp_path / "moved" / "metrics.jsonl").unlink()
    copy = train(tmp_path / "copy", resume_from=tmp_path / "moved", seed=5, total_timesteps=48)
    assert [line["timesteps"] for line in RunDirectory.open(copy).metrics()] == [48]


def test_a_copy_names_its_new_number_of_steps(source, tmp_path):
    reports = []
    config = ppo.Config(**{**SMALL, "run_dir": tmp_path / "copy", "seed": 5, "total_timesteps": 48})
    ppo.train(config, resume_from=source, on_report=reports.append, progress=False)
    assert "the run now has 48 steps instead of 32" in reports[0].resumed


def test_a_resumed_run_does_not_need_its_origin(source, tmp_path):
    copy = tmp_path / "copy"
    train(copy, resume_from=source, seed=5, total_timesteps=48)
    tuned = train(tmp_path / "tuned", init_from=str(copy))
    copy.rename(tmp_path / "moved")
    resumed = train(tuned, resume_from=tuned, init_from=str(copy), total_timesteps=48)
    assert RunDirectory.open(resumed).metrics()[-1]["timesteps"] == 48


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hidden_sizes": (5,)},
            r"another network: its body has hidden_sizes \[4\], the",
        ),
        (
            {"env_id": "Acrobot-v1"},
            r"other spaces: its obs_spec has shape .*the new run's shape",
        ),
        ({"normalize_obs": False}, "`init_from` needs `normalize_obs` True, as in .*got False"),
    ],
)
def test_other_spaces_and_networks_are_refused(source, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "tuned", init_from=str(source), **options)
    assert not (tmp_path / "tuned").exists()


def test_a_missing_or_damaged_origin_is_refused(source, tmp_path):
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        train(tmp_path / "tuned", init_from=str(tmp_path / "none"))
    copy = train(tmp_path / "copy", resume_from=source, seed=5, total_timesteps=48)
    state = copy / "checkpoints" / "last" / "policy.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        train(tmp_path / "tuned", init_from=str(copy))
    assert not (tmp_path / "tuned").exists()


def test_replay_algorithms_start_from_another_run(tmp_path):
    options = {
        "env_id": toy_envs.ChooseTheSign,
        "total_timesteps": 24,
        "learning_starts": 8,
        "batch_size": 8,
        "num_envs": 2,
        "hidden_sizes": (4,),
        "execution": "eager",
        "normalize_obs": True,
    }
    first = dqn.train(dqn.Config(run_dir=tmp_path / "first", **options), progress=False).run_dir
    config = dqn.Config(
        **{**options, "learning_rate": 1e-30, "tau": 1.0},
        init_from=str(first),
        run_dir=tmp_path / "second",
    )
    second = dqn.train(config, progress=False).run_dir
    np.testing.assert_array_equal(arrays(second)["state.params"], arrays(first)["state.params"])
    with pytest.raises(ConfigError, match="`init_from` must name a run with the same spaces"):
        sac.train("Pendulum-v1", init_from=str(first), normalize_obs=True, run_dir=tmp_path / "s")


def test_a_run_continues_in_a_new_directory(source, tmp_path):
    """The copy gets the weights of a run that continues in its own directory."""
    before = (source / "metrics.jsonl").read_text()
    copy = train(tmp_path / "copy", resume_from=source, seed=5, total_timesteps=48)
    assert copy == tmp_path / "copy"
    assert (source / "metrics.jsonl").read_text() == before
    run = RunDirectory.open(copy)
    assert run.is_signed
    assert run.config["config"]["run_dir"] == str(copy)
    assert [line["timesteps"] for line in run.metrics()] == [16, 32, 48]
    again = train(tmp_path / "again", resume_from=copy, seed=5, total_timesteps=64)
    copy = train(copy, resume_from=copy, seed=5, total_timesteps=64)
    first, second = arrays(copy), arrays(again)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    with pytest.raises(RunDirectoryError, match="must be new, but it exists"):
        train(again, resume_from=copy, seed=5, total_timesteps=80)


def test_a_new_directory_from_an_older_checkpoint(source, tmp_path):
    checkpoint = RunDirectory.open(source).path / "checkpoints"
    names = sorted(path.name for path in checkpoint.iterdir() if not path.is_symlink())
    copy = train(tmp_path / "copy", resume_from=checkpoint / names[0], seed=5, total_timesteps=48)
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["timesteps"] for line in lines] == [16, 32, 48]
