"""Training several seeds with one command."""

import os
import signal
import sys

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import seeds, training_plan
from hotloop.cli.training_plan import parse_jobs, parse_seeds
from hotloop.errors import ConfigError
from hotloop.runs.summary import summarize
from tests.cli.run_command import run, signal_when

SHORT = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--execution", "eager"]


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
    monkeypatch.setattr(training_plan, "available_cores", lambda: 8)
    assert parse_jobs(None, ppo.Config()) == 8
    assert parse_jobs(None, ppo.Config(workers=3, num_envs=3)) == 2
    assert parse_jobs(None, ppo.Config(workers="auto")) == 1
    assert parse_jobs("3", ppo.Config()) == 3
    for text in ("0", "-1", "two", "1.5"):
        with pytest.raises(ConfigError, match="must be a positive number of processes"):
            parse_jobs(text, ppo.Config())


def test_two_seeds(capfd, tmp_path):
    args = ["--seeds", "3,5", "--jobs", 2, "--run-dir", tmp_path / "both"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert (code, err) == (0, "")
    assert sorted(os.listdir(tmp_path / "both")) == ["seed_3", "seed_5"]
    assert [summarize(tmp_path / "both" / f"seed_{x}").seed for x in (3, 5)] == [3, 5]
    assert f"2 seeds, 2 at a time, in {tmp_path / 'both'}" in out
    assert "seed 3 | " in out
    assert "seed 5 | 64/64 steps" in out
    assert "largest cost" not in out  # each run has it
    assert out.endswith(f"next: hotloop plot {tmp_path / 'both'}\n")
    assert out.count("finished") == 2
    # More seeds go into the same directory, and none is repeated.
    code, _, err = run(capfd, "train", "ppo", *SHORT, "--seeds=5-6", "--run-dir", tmp_path / "both")
    assert code == 1
    assert "seed_5 exists already, and runs are never overwritten: remove seed 5" in err
    assert sorted(os.listdir(tmp_path / "both")) == ["seed_3", "seed_5"]


# The trainings' processes run this instead of hotloop. It fails at once, or waits for a signal.
CHILD = """
import pathlib, signal, sys, time
(path,) = (pathlib.Path(x[10:]) for x in sys.argv if x.startswith("--run-dir="))
print("it begins", file=sys.stderr, flush=True)
if "no-such-algorithm" in str(path):
    sys.exit(2)
def end(number, _):
    print("interrupted by", number, file=sys.stderr)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, end)
path.mkdir(parents=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Replace each training by a small program."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable} -IS{CHILD}")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.usefixtures("child")
def test_a_seed_that_fails(capfd, tmp_path):
    args = ["--seeds", "1-2", "--jobs", 1, "--run-dir", tmp_path / "no-such-algorithm"]
    code, out, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 2
    assert f"in {tmp_path}" in out
    assert "seed 1 | it begins" in err
    assert "seed 1 failed with exit code 2: see its lines above" in err
    assert "seed 2 failed with exit code 2" in err


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


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1],
    ids=["SIGINT", "SIGTERM", "SIGUSR1"],
)
def test_an_interrupt_reaches_the_trainings(capfd, tmp_path, number):
    runs = tmp_path / "it"
    args = ["--seeds", "1-3", "--jobs", "2", "--run-dir", runs]
    with signal_when(lambda: runs.exists() and len(os.listdir(runs)) == 2, number):
        code, _, err = run(capfd, "train", "ppo", *SHORT, *args)
    assert code == 128 + number
    assert err.count(f"interrupted by {int(number)}") == 2
    assert "interrupted: seeds 1, 2, 3 are not finished" in err
    assert sorted(os.listdir(runs)) == ["seed_1", "seed_2"]


@pytest.mark.usefixtures("child")
def test_an_interrupt_reaches_a_training_that_starts(capfd, tmp_path, monkeypatch):
    processes = []

    class Child(seeds._Child):
        def __init__(self, *args):
            super().__init__(*args)
            processes.append(self._process)
            if len(processes) == 2:
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(seeds, "_Child", Child)
    args = ["--seeds", "1-2", "--jobs", "2", "--run-dir", tmp_path / "it"]
    try:
        code, *_ = run(capfd, "train", "ppo", *SHORT, *args)
        assert code == 128 + signal.SIGTERM
        assert [process.poll() is None for process in processes] == [False, False]
    finally:
        for process in processes:
            process.kill()
