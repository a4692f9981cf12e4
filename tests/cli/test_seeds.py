"""Training several seeds with one command."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hotloop.algorithms import ppo
from hotloop.errors import ConfigError
from hotloop.experiments import plan, read_table
from hotloop.experiments.plan import default_jobs, parse_seeds
from hotloop.runs.summary import summarize
from tests.cli.run_command import has_learned, run, signal_when
from tests.warm_pool import use_warm_pool

SHORT = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--execution", "eager"]
SHORT += ["--update-epochs", "1"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1-5", [1, 2, 3, 4, 5]), ("3", [3]), ("1, 7-9,4", [1, 7, 8, 9, 4]), ("0-0", [0])],
)
def test_seeds(text, numbers):
    assert parse_seeds(text) == parse_seeds(numbers) == tuple(numbers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1..5", "must be numbers and ranges, got '1..5': write `1-5`, or `1,3,7-9`"),
        ("a", "must be numbers and ranges"),
        ("-3", "must be numbers and ranges"),
        ("1,", "must be numbers and ranges"),
        ("5-1", "from the smaller number to the larger, got '5-1'"),
        ("1-3,2", "has 2 twice in '1-3,2'"),
        ("1-1000000000", "must be at most 1,000"),
        ("9223372036854775808", "must be below 2⁶³, got '9223372036854775808'"),
        ("1" * 5000, "must be below 2⁶³, got '1111"),
        ("1-", "must be numbers and ranges, got '1-'"),
        ("1,1", "has 1 twice in '1,1'"),
        ("", "must be numbers and ranges, got ''"),
        ("²", "must be numbers and ranges"),
    ],
)
def test_invalid_seeds_are_rejected(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_seeds(text)


def test_number_of_trainings_at_a_time(monkeypatch):
    monkeypatch.setattr(plan, "available_cores", lambda: 8)
    assert default_jobs(ppo.Config()) == 8
    assert default_jobs(ppo.Config(workers=3, num_envs=3)) == 2
    assert default_jobs(ppo.Config(workers="auto")) == 1


def test_two_seeds(capfd, tmp_path, monkeypatch):
    use_warm_pool(monkeypatch)
    args = ["--seeds", "3,5", "--jobs", 2, "--run-dir", tmp_path / "both"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert (code, err) == (0, "")
    names = ["output.log", "seed_3", "seed_5", "trainings.sqlite"]
    assert sorted(os.listdir(tmp_path / "both")) == names
    assert [summarize(tmp_path / "both" / f"seed_{x}").seed for x in (3, 5)] == [3, 5]
    assert f"2 seeds, 2 at a time, in {tmp_path / 'both'}" in out
    assert "seed 3 | " in out
    assert "seed 5 | 64/64 steps" in out
    assert "largest cost" not in out  # each run has it
    assert out.endswith(f"next: hotloop plot {tmp_path / 'both'}\n")
    assert out.count("finished") == 2
    table = read_table(tmp_path / "both").table()
    assert table["seed"].tolist() == [3, 5]
    assert table["state"].tolist() == ["done", "done"]
    # More seeds go into the same directory, and none is repeated.
    code, _, err = run(capfd, "train", "ppo", *SHORT, "--seeds=5-6", "--run-dir", tmp_path / "both")
    assert code == 1
    assert "seed_5 exists already, and runs are never overwritten: remove it" in err
    assert sorted(os.listdir(tmp_path / "both")) == names
    code, *_ = run(capfd, "train", "ppo", *SHORT, "--seeds=7", "--run-dir", tmp_path / "both")
    assert code == 0
    assert read_table(tmp_path / "both").table()["seed"].tolist() == [3, 5, 7]
    args = ["--learning-rate=1e-2", "--seeds=8", "--run-dir", tmp_path / "both"]
    code, _, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 2
    assert "has trainings with other options, and only seeds can be added" in err


def test_seeds_that_fail(capfd, tmp_path, monkeypatch):
    use_warm_pool(monkeypatch)
    env = ["--env-id", "tests.toy_envs:Misbehaves", "--env-kwargs", '{"how": "raises", "at": 9}']
    args = [*env, "--seeds", "1-2", "--jobs", 1, "--run-dir", tmp_path / "it"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 1
    assert f"2 seeds, 1 at a time, in {tmp_path}" in out
    assert "seed_1 failed: " in err
    assert f"its output is in {tmp_path / 'it' / 'output.log'}" in err
    assert "seed_2 failed: " in err
    assert read_table(tmp_path / "it").table()["state"].tolist() == ["failed", "failed"]


def test_a_killed_training_keeps_its_run(capfd, tmp_path, monkeypatch):
    """It is not tried again, since `hotloop resume` may continue it."""
    use_warm_pool(monkeypatch)
    env = ["--env-id", "tests.experiments.crashing_env:CrashingEnv"]
    args = [*env, "--seeds", "1", "--run-dir", tmp_path / "it"]
    code, _, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 1
    assert "seed_1 failed: its process ended by SIGKILL; out of memory?" in err
    assert (tmp_path / "it" / "seed_1" / "config.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seeds", "1-2", "--seed", "3"], "`--seed` and `--seeds` can't be combined"),
        (["--seeds"], "`--seeds` needs a value"),
        (["--seeds", "x"], "`--seeds` must be numbers and ranges, got 'x'"),
        (["--jobs", "2"], "`--jobs` needs several trainings: pass `--seeds` too"),
        (["--seeds", "1-2", "--jobs", "0"], "`--jobs` must be a positive number"),
        (["--seeds", "1-2", "--num-envs", "0"], "`num_envs` must be"),
    ],
)
def test_mistakes(capsys, tmp_path, args, message):
    code, _, err = run(capsys, "train", "ppo", *args, "--runs-dir", tmp_path)
    assert code == 2
    assert message in err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_keeps_what_was_learned(capfd, tmp_path, monkeypatch, number):
    use_warm_pool(monkeypatch)
    runs = tmp_path / "it"
    args = ["--total-timesteps", "100000000", *SHORT[2:], "--seeds", "1-3", "--jobs", "2"]
    with signal_when(lambda: all(has_learned(runs / f"seed_{k}") for k in (1, 2)), number):
        code, out, err = run(capfd, "train", "ppo", *args, "--run-dir", runs)
    assert code == 128 + number
    assert "interrupted: `hotloop resume RUN` continues a run that is not finished" in err
    assert out.count("stopped") == 2
    assert not (runs / "seed_3").exists()
    for seed in (1, 2):
        assert summarize(runs / f"seed_{seed}").timesteps > 0
        assert (runs / f"seed_{seed}" / "checkpoints" / "last").exists()


def test_a_kill_of_the_command_keeps_what_was_learned(tmp_path):
    """The trainings save their last checkpoint when it ends."""
    args = ["--total-timesteps", "100000000", *SHORT[2:], "--seeds", "1"]
    command = [sys.executable, "-m", "hotloop", "train", "ppo", *args, "--run-dir", tmp_path / "it"]
    process, run_dir = subprocess.Popen(command), tmp_path / "it" / "seed_1"
    try:
        deadline = time.monotonic() + 200
        while not has_learned(run_dir) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    while summarize(run_dir).status == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert summarize(run_dir).status == "stopped"
    assert (run_dir / "checkpoints" / "last").exists()
