"""`hotloop train --lanes on`, and `--vary`."""

import os
import signal

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import seeds
from hotloop.cli.training_plan import TrainingPlan, parse_varied, without_seed
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.runs.summary import summarize
from tests.cli.run_command import ChildInProcess, has_learned, run, signal_when

SHORT = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--execution", "eager"]


def test_a_plan():
    plan = TrainingPlan((1, 2), (("learning_rate", ("1e-3", "linear:1e-3,0")), ("gamma", ("0.9",))))
    planned = plan.trainings()
    assert [one.name for one in planned] == [
        "learning_rate=1e-3__gamma=0.9__seed_1",
        "learning_rate=1e-3__gamma=0.9__seed_2",
        "learning_rate=linear-1e-3-0__gamma=0.9__seed_1",
        "learning_rate=linear-1e-3-0__gamma=0.9__seed_2",
    ]
    assert planned[0].label == "learning_rate 1e-3, gamma 0.9, seed 1"
    assert planned[3].options == ("--learning-rate=linear:1e-3,0", "--gamma=0.9", "--seed=2")
    assert [part.seeds for part in plan.split(2)] == [(1,), (2,)]
    one = TrainingPlan((3,), plan.varied)
    parts = one.split(2)
    assert [part.varied[0][1] for part in parts] == [("1e-3",), ("linear:1e-3,0",)]
    assert [x for part in parts for x in part.trainings()] == one.trainings()
    assert [len(part.seeds) for part in TrainingPlan(tuple(range(8))).split(3)] == [2, 3, 3]
    assert len(TrainingPlan((1, 2)).split(5)) == 2


@pytest.mark.parametrize("plan", [TrainingPlan((4,), (("gamma", ("0.9",)),)), TrainingPlan((1, 5))])
def test_a_plan_as_arguments_is_the_same(plan):
    seeds, *varied = (arg.partition("=")[2] for arg in plan.arguments())
    assert seeds == ",".join(map(str, plan.seeds))
    assert parse_varied(varied, ppo.Config, []) == plan.varied


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["learning_rate"], "must be an option and its values, got 'learning_rate'"),
        (["learning_rate=1,,2"], "must be an option and its values"),
        (["learning_rate="], "must be an option and its values"),
        (["lerning_rate=1,2"], "must name an option, got 'lerning_rate'; did you mean"),
        (["seed=1,2"], "can't vary `seed`: use `--seeds` for seeds"),
        (["gamma=0.9", "gamma=0.8"], "`gamma` is set twice"),
        (["gae-lambda=0.9"], "`gae_lambda` is set twice"),
        (["gamma=0.9,0.9"], "has a value twice"),
    ],
)
def test_invalid_values_are_rejected(texts, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        parse_varied(texts, ppo.Config, ["--gae-lambda", "0.5"])


def test_a_seed_is_left_out():
    assert without_seed(["--seed", "3", "--gamma", "1", "--seed=4"]) == ["--gamma", "1"]


def test_lanes_in_one_process(capfd, tmp_path):
    args = ["--seeds", "1-2", "--vary", "learning_rate=1e-3,3e-4", "--lanes", "on"]
    code, out, err = run(
        capfd, "train", "ppo", *SHORT, *args, "--jobs", 1, "--run-dir", tmp_path / "it"
    )
    assert (code, err) == (0, "")
    assert f"2 settings × 2 seeds, 4 lanes in one process, in {tmp_path / 'it'}" in out
    assert "256/256 steps" in out
    assert "update of 4 lanes: eager, as requested" in out
    assert out.count("finished") == 4
    assert out.endswith(f"next: hotloop plot {tmp_path / 'it'}\n")
    names = sorted(os.listdir(tmp_path / "it"))
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


def test_lanes_in_two_processes(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "_Child", ChildInProcess)
    args = ["--seed", "7", "--vary", "gamma=0.9,0.99,1", "--lanes", "on", "--jobs", "2"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args, "--run-dir", tmp_path / "it")
    assert (code, err) == (0, "")
    assert "3 settings × 1 seed, lanes in 2 processes" in out
    assert "lanes 1 | begins" in out
    assert "lanes 2-3 | begins" in out
    assert "update: eager, as requested" in out
    assert "128/128 steps" in out
    assert {summarize(path).status for path in (tmp_path / "it").iterdir()} == {"finished"}
    assert [summarize(path).seed for path in (tmp_path / "it").iterdir()] == [7, 7, 7]


def test_values_in_separate_processes(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "_Child", ChildInProcess)
    args = ["--vary", "hidden_sizes=8 8,9", "--jobs", "2", "--run-dir", tmp_path / "it"]
    code, out, _ = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 0
    assert "hidden_sizes 9, seed 1 | begins" in out
    assert sorted(os.listdir(tmp_path / "it")) == [
        "hidden_sizes=8-8__seed_1",
        "hidden_sizes=9__seed_1",
    ]


def test_a_lane_that_fails(capfd, tmp_path):
    args = ["--vary", "learning_rate=1e-3,1e30", "--lanes", "on", "--jobs", "1"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args, "--run-dir", tmp_path / "it")
    assert code == 1
    assert "learning_rate 1e30, seed 1 failed, the others continued: losses and parameters" in err
    assert out.count("finished") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--lanes", "on"], "`--lanes` needs several trainings: pass `--seeds` too"),
        (["--seeds", "1-2", "--lanes", "maybe"], "`--lanes` must be 'on' or 'off', got 'maybe'"),
        (["--seeds", "1-2", "--lanes"], "`--lanes` needs a value"),
        (["--vary", "hidden_sizes=8;9", "--lanes", "on"], "lanes can't differ in `hidden_sizes`"),
        (["--vary", "gamma=0.9,2"], "`gamma` must lie in [0, 1], got 2.0"),
        (["--vary", "num_envs=2,zwei", "--lanes", "on"], "`num_envs` must be a positive integer"),
        (["--seeds", "1-2", "--seed", "4", "--lanes", "on"], "can't be combined"),
    ],
)
def test_mistakes(capsys, tmp_path, args, message):
    code, out, err = run(capsys, "train", "ppo", *args, "--runs-dir", tmp_path)
    assert code == 2
    assert message in out + err
    assert not os.listdir(tmp_path)


def test_ctrl_c_keeps_what_lanes_have_learned(capsys, tmp_path):
    command = ["train", "ppo", "--total-timesteps", "100000000", *SHORT[2:]]
    command += ["--seeds", "1-2", "--lanes", "on", "--jobs", "1", "--run-dir", tmp_path / "it"]
    with signal_when(lambda: has_learned(tmp_path / "it" / "seed_2"), signal.SIGINT):
        code, out, err = run(capsys, *command)
    assert code == 130
    assert "interrupted: `hotloop resume RUN` continues one run by itself" in err
    assert out.count("stopped") + out.count("killed") == 2
    for seed in (1, 2):
        assert summarize(tmp_path / "it" / f"seed_{seed}").timesteps > 0
