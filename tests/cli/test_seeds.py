"""Trainings of several seeds by one command."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main, planned
from hotloop.cli.planned import parse_jobs, parse_seeds
from hotloop.errors import ConfigError
from hotloop.runs.summary import summarise

SHORT = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--execution", "eager"]


def run(capsys, *args):
    """Exit code, standard output, standard error."""
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1-5", [1, 2, 3, 4, 5]), ("3", [3]), ("1, 7-9,4", [1, 7, 8, 9, 4]), ("0-0", [0])],
)
def test_seeds(text, numbers):
    assert parse_seeds(text) == tuple(numbers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1..5", "must be numbers and ranges, got '1..5': write `1-5`, or `1,3,7-9`"),
        ("a", "must be numbers and ranges"),
        ("-3", "must be numbers and ranges"),
        ("1,", "must be numbers and ranges"),
        ("5-1", "from the smaller number to the larger, got '5-1'"),
        ("1-3,2", "names 2 twice in '1-3,2'"),
        ("1-1000000000", "must be at most 1,000"),
        ("9223372036854775808", "must be below 2⁶³, got '9223372036854775808'"),
        ("1" * 5000, "must be below 2⁶³, got '1111"),
        ("1-", "must be numbers and ranges, got '1-'"),
        ("1,1", "names 1 twice in '1,1'"),
        ("", "must be numbers and ranges, got ''"),
        ("²", "must be numbers and ranges"),
    ],
)
def test_seeds_that_are_none(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_seeds(text)


def test_trainings_at_a_time(monkeypatch):
    monkeypatch.setattr(planned, "available_cores", lambda: 8)
    assert parse_jobs(None, ppo.Config()) == 8
    assert parse_jobs(None, ppo.Config(workers=3, num_envs=3)) == 2
    assert parse_jobs(None, ppo.Config(workers="auto")) == 1
    assert parse_jobs("3", ppo.Config()) == 3
    for text in ("0", "-1", "two", "1.5"):
        with pytest.raises(ConfigError, match="must be how many processes run at once"):
            parse_jobs(text, ppo.Config())


def test_two_seeds(capfd, tmp_path):
    args = ["--seeds", "3,5", "--jobs", 2, "--run-dir", tmp_path / "both"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert (code, err) == (0, "")
    assert sorted(os.listdir(tmp_path / "both")) == ["seed_3", "seed_5"]
    assert [summarise(tmp_path / "both" / f"seed_{x}").seed for x in (3, 5)] == [3, 5]
    assert f"2 seeds, 2 at a time, in {tmp_path / 'both'}" in out
    assert "seed 3 | " in out
    assert "seed 5 | 64/64 steps" in out
    assert "largest cost" not in out  # it is in each run
    assert out.endswith(f"next: hotloop plot {tmp_path / 'both'}\n")
    assert out.count("finished") == 2
    # More seeds into the same directory; none twice.
    code, _, err = run(capfd, "train", "ppo", *SHORT, "--seeds=5-6", "--run-dir", tmp_path / "both")
    assert code == 1
    assert "seed_5 is there already, and no run is written over: leave seed 5 out" in err
    assert sorted(os.listdir(tmp_path / "both")) == ["seed_3", "seed_5"]


def test_a_seed_that_fails(capfd, tmp_path):
    args = ["--env-id", "tests.cli.odd_envs:Nowhere", "--seeds", "1-2", "--jobs", 1]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args, "--runs-dir", tmp_path)
    assert code == 2
    assert f"in {tmp_path}" in out
    assert "seed 1 | " in err
    assert "Nowhere" in err
    assert "seed 1 ended with 2: see its lines above" in err
    assert "seed 2 ended with 2" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seeds", "1-2", "--seed", "3"], "`--seed` and `--seeds` can't both be given"),
        (["--seeds"], "`--seeds` needs a value"),
        (["--seeds", "x"], "`--seeds` must be numbers and ranges, got 'x'"),
        (["--jobs", "2"], "`--jobs` is for several trainings: give `--seeds` too"),
        (["--seeds", "1-2", "--jobs", "0"], "`--jobs` must be how many"),
        (["--seeds", "1-2", "--num-envs", "0"], "`num_envs` must be"),
    ],
)
def test_mistakes(capsys, tmp_path, args, message):
    code, _, err = run(capsys, "train", "ppo", *args, "--runs-dir", tmp_path)
    assert code == 2
    assert message in err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_is_handed_on(tmp_path, number):
    command = [sys.executable, "-m", "hotloop", "train", "ppo", "--total-timesteps", "100000000"]
    command += [*SHORT[2:], "--seeds", "1-3", "--jobs", "2", "--run-dir", str(tmp_path / "it")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    metrics = [tmp_path / "it" / f"seed_{x}" / "metrics.jsonl" for x in (1, 2)]
    end = time.monotonic() + 120
    while not all(path.exists() and path.stat().st_size for path in metrics):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out.count("interrupted; metrics, timing and the last checkpoint are kept") == 2
    assert "interrupted: seeds 1, 2, 3 are not finished" in out
    assert sorted(os.listdir(tmp_path / "it")) == ["seed_1", "seed_2"]
    assert {summarise(path.parent).status for path in metrics} == {"stopped"}
