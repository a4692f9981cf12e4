"""`hotloop train --lanes on`, and `--vary`."""

import os

import pytest

from hotloop.algorithms import ppo
from hotloop.cli.train_many import varied_options
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.experiments.launch import group_paths, plan_group
from hotloop.runs.summary import summarize
from tests.cli.run_command import run
from tests.warm_pool import use_warm_pool

SHORT = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--execution", "eager"]
SHORT += ["--update-epochs", "1"]


@pytest.fixture(autouse=True)
def warm_pool(monkeypatch):
    use_warm_pool(monkeypatch)


def test_a_plan(tmp_path):
    varied = {"learning_rate": "1e-3;linear:1e-3,0", "gamma": "0.9"}
    plan = plan_group("ppo", ppo.Config(), varied, (1, 2), 4)
    assert [path.name for path in group_paths(plan, tmp_path)] == [
        "learning_rate=1e-3__gamma=0.9__seed_1",
        "learning_rate=1e-3__gamma=0.9__seed_2",
        "learning_rate=linear-1e-3-0__gamma=0.9__seed_1",
        "learning_rate=linear-1e-3-0__gamma=0.9__seed_2",
    ]
    assert (plan.jobs, plan.lanes, plan.runs_per_update) == (4, 1, 1)
    sizes = plan_group("ppo", ppo.Config(), {"hidden_sizes": "8 8,9"}, (1,))
    names = [path.name for path in group_paths(sizes, tmp_path)]
    assert names == ["hidden_sizes=8-8__seed_1", "hidden_sizes=9__seed_1"]
    steps = plan_group("ppo", ppo.Config(), {"gamma": "0.8:0.9:0.05"}, (1,))
    assert steps.space == {"gamma": ["0.8", "0.85", "0.9"]}
    assert plan_group("ppo", ppo.Config(), {}, tuple(range(8)), 3, has_lanes=True).lanes == 3


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["learning_rate"], "expected --vary NAME=VALUES such as .*, got '--vary learning_rate'"),
        (["learning_rate=1,,2"], "a value is missing"),
        (["learning_rate="], "a value is missing"),
        (["learning_rate=log:1e-4,1e-2"], "needs the number of points of `learning_rate`"),
        (["lerning_rate=1,2"], "name of an option, got 'lerning_rate'; did you mean"),
        (["seed=1,2"], "several seeds with `--seeds`"),
        (["gamma=0.9", "gamma=0.8"], "`--vary gamma` is given twice"),
        (["gae-lambda=0.9"], "`gae_lambda` has a space and a fixed value"),
        (["gamma=0.9,0.9"], "has a value twice"),
        (["total_timesteps=1,2"], "`total_timesteps` can't be swept over"),
    ],
)
def test_invalid_values_are_rejected(texts, message):
    def plan():
        varied = varied_options({"--vary": texts}, ["--gae-lambda", "0.5"])
        return plan_group("ppo", ppo.Config(), varied, (1,))

    with pytest.raises((ConfigError, UnknownNameError), match=message):
        plan()


def test_lanes_in_one_process(capfd, tmp_path):
    args = ["--seeds", "1-2", "--vary", "learning_rate=1e-3,3e-4", "--lanes", "on"]
    code, out, err = run(
        capfd, "train", "ppo", *SHORT, *args, "--jobs", 1, "--run-dir", tmp_path / "it"
    )
    assert (code, err) == (0, "")
    assert f"2 settings × 2 seeds, 4 lanes in one process, in {tmp_path / 'it'}" in out
    assert "256/256 steps" in out
    assert "| update of 4 lanes: eager, as requested" in out
    assert out.count("finished") == 4
    assert out.endswith(f"next: hotloop plot {tmp_path / 'it'}\n")
    names = sorted(path.name for path in (tmp_path / "it").iterdir() if path.is_dir())
    assert names == [f"learning_rate={x}__seed_{k}" for x in ("1e-3", "3e-4") for k in (1, 2)]
    for name in names:
        assert {"learning_curve.png", "checkpoints", "timing"} <= {
            *os.listdir(tmp_path / "it" / name)
        }
    code, out, _ = run(capfd, "plot", tmp_path / "it", "--output", tmp_path / "curves.png")
    assert code == 0
    assert "learning_rate=0.0003" in out
    code, _, err = run(
        capfd, "train", "ppo", *SHORT, *args, "--jobs", 1, "--run-dir", tmp_path / "it"
    )
    assert code == 1
    assert "exists already" in err


def test_lanes_in_two_processes(capfd, tmp_path):
    args = ["--seed", "7", "--vary", "gamma=0.9,0.99,1", "--lanes", "on", "--jobs", "2"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args, "--run-dir", tmp_path / "it")
    assert (code, err) == (0, "")
    assert "3 settings × 1 seed, 2 lanes in each of 2 processes" in out
    assert "gamma 0.9, seed 7 and 1 more | 128/128 steps" in out
    assert "gamma 1, seed 7 | 64/64 steps" in out
    summaries = [summarize(path) for path in (tmp_path / "it").iterdir() if path.is_dir()]
    assert [(x.status, x.seed) for x in summaries] == [("finished", 7)] * 3


def test_a_lane_that_fails(capfd, tmp_path):
    args = ["--vary", "learning_rate=1e-3,1e30", "--lanes", "on", "--jobs", "1"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args, "--run-dir", tmp_path / "it")
    assert code == 1
    assert "learning_rate=1e30__seed_1 failed: NaN: losses and parameters" in err
    assert out.count("finished") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--lanes", "on"], "`--lanes` needs several trainings: pass `--seeds` too"),
        (["--seeds", "1-2", "--lanes", "maybe"], "`--lanes` must be 'on' or 'off', got 'maybe'"),
        (["--seeds", "1-2", "--lanes"], "`--lanes` needs a value"),
        (["--vary", "hidden_sizes=8;9", "--lanes", "on"], "lanes can't differ in `hidden_sizes`"),
        (["--vary", "gamma=0.9,2"], "`gamma` must lie in [0, 1], got 2"),
        (["--vary", "num_envs=2,zwei", "--lanes", "on"], "`num_envs` must be a positive integer"),
        (["--seeds", "1-2", "--seed", "4", "--lanes", "on"], "can't be combined"),
    ],
)
def test_mistakes(capsys, tmp_path, args, message):
    code, out, err = run(capsys, "train", "ppo", *args, "--runs-dir", tmp_path)
    assert code == 2
    assert message in out + err
    assert not os.listdir(tmp_path)
