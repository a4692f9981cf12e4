import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from hotloop.cli import main

SMALL = ("--runs", "300", "--steps", "50")


def grid(capsys, *args):
    """Return the exit code, output and errors, without the progress that a busy machine prints."""
    try:
        code = main(["bandit", "grid", *map(str, args)])
    except SystemExit as stop:  # option parsers exit
        code = stop.code
    captured = capsys.readouterr()
    err = re.sub(r"^\d+% of .* ns a step.*\n", "", captured.err, flags=re.MULTILINE)
    return code, captured.out, err


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_picture_and_export(capsys, folder):
    code, out, err = grid(
        capsys,
        *("epsilon-greedy", "epsilon=2**-7:2**-2:x2", "step_size=none,0.1", *SMALL),
        *("--env", "noise=0.5", "--picture", "study.svg", "--export", "grid.parquet"),
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "epsilon-greedy · gaussian, noise 0.5, 10 arms · 300 runs of 50 steps · seed 0"
    )
    assert re.split(r"\s\s+", lines[2].strip()) == [
        *("epsilon", "step_size", "reward", "optimal", "regret"),
        *("reward, last 5", "optimal, last 5"),
    ]
    rows = lines[3:15]
    rewards = [float(row.split()[2]) for row in rows]
    assert rewards == sorted(rewards, reverse=True)
    assert re.fullmatch(
        r"12 points: 180 k run·steps; [\d.]+ s on \d+ threads?, \d+% of it in kernels, after "
        r"[\d.]+ s of preparing them; stored in grid.sqlite",
        lines[-3],
    )
    assert lines[-2:] == ["picture: study.svg", "export: grid.parquet"]
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["grid.parquet", "grid.sqlite", "study.svg"]
    assert (folder / "study.svg").stat().st_size > 5000


def test_the_best_twenty_or_all(capsys):
    args = ("ucb", "c=0.1:3:0.1", *SMALL, "--file", "own.sqlite")
    _, out, _ = grid(capsys, *args)
    assert "… and 10 more: --all prints them" in out
    code, out, err = grid(capsys, *args, "--all", "--quantity", "final_regret")
    assert (code, err) == (0, "")
    regrets = [float(line.split()[8]) for line in out.splitlines()[3:33]]
    assert regrets == sorted(regrets)
    assert out.endswith("30 points: all results were in own.sqlite, nothing was computed\n")


def test_json_and_environments(capsys):
    code, out, _ = grid(
        capsys,
        *("kl-ucb", "--environment", "bernoulli", "--env", "means=0.9,0.8;0.5,0.4", *SMALL),
        *("--seed", 7, "--threads", 1, "--late-steps", 10, "--steps-per-point", 5, "--json"),
    )
    assert code == 0
    content = json.loads(out)
    assert content["ranges"] == {"env.means": [[0.9, 0.8], [0.5, 0.4]]}
    assert (content["seed"], content["threads"], content["late_steps"]) == (7, 1, 10)
    assert (content["num_runs"], content["num_steps"], content["steps_per_point"]) == (300, 50, 5)
    assert content["computed_run_steps"] == 2 * 300 * 50
    assert 0 < content["kernel_share"] <= 1
    first = content["points"][0]
    assert first["agent"] == {"name": "kl-ucb", "c": 0}
    assert first["mean_reward"]["mean"] == pytest.approx(0.87, abs=0.03)


def test_arms_may_be_a_range(capsys):
    code, out, _ = grid(capsys, "ucb", *SMALL, "--arms", "2,5", "--json")
    assert code == 0
    assert json.loads(out)["ranges"] == {"env.num_arms": [2, 5]}


def test_more_runs(capsys):
    grid(capsys, "ucb", "c=1,2", "--runs", 2048, "--steps", 50)
    code, out, err = grid(capsys, "ucb", "c=1,2", "--runs", 3000, "--steps", 50)
    assert code == 0
    assert err == "hotloop: 0 of 2 points, 68% of all run·steps, are in the file already\n"
    assert "2 points: 95.2 k run·steps, 205 k were in the file;" in out


def test_other_kernels_are_reported(capsys, monkeypatch):
    from hotloop.bandits.grids import grid as grid_module

    grid(capsys, "ucb", "c=1,2", *SMALL)
    monkeypatch.setattr(grid_module, "KERNEL_VERSION", 99)
    code, _, err = grid(capsys, "ucb", "c=1,2", *SMALL)
    assert code == 0
    assert err.startswith("hotloop: 2 rows in grid.sqlite are from another version of the kernels")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["ucb", "c"], 2, "expected FIELD=RANGE such as epsilon=0.01,0.1, got 'c'"),
        (["ucb", "=1"], 2, "expected FIELD=RANGE"),
        (["ucb", "c="], 2, "`c=` is not a valid range: a value is missing"),
        (["ucb", "c=1", "c=2"], 2, "`c` is given twice"),
        (["ucb", "--env", "noise=1", "noise=2"], 2, "`--env noise` is given twice"),
        (["ucb", "--env", "noise"], 2, "expected --env FIELD=RANGE"),
        (["ucb", "--arms", "5", "--env", "num_arms=6"], 2, "are the same: give one of them"),
        (["ucb", "--rnus", "5"], 2, "did you mean '--runs'"),
        (["ucb", "--runs", "0"], 2, "`--runs` must be a positive integer, got 0"),
        (["ucb", "--seed", "-1"], 2, "`--seed` must be an integer of at least 0, got -1"),
        (["ucb", "--threads", "0"], 2, "`--threads` must be a positive integer, got 0"),
        (["ucb", "c=1,2", "--picture", "study.jpg"], 2, "`--picture` must end in .png"),
        (["ucb", "--picture", "study.png"], 2, "one or two fields with several values"),
        (["ucb", "--export", "grid.csv"], 2, "`--export` must end in .parquet"),
        (["ucb", "--file", "text"], 1, "text is not a hotloop grid"),
        (["ucb", "--file", "text/grid.sqlite"], 1, "can't be written"),
    ],
)
def test_mistakes(capsys, folder, args, code, message):
    (folder / "text").write_text("something of the user's, " * 100)
    exit_code, out, err = grid(capsys, *args)
    assert (exit_code, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == ["text"]
    assert (folder / "text").read_text() == "something of the user's, " * 100


def start(folder, *args):
    """Start a process with a grid that takes longer than any test."""
    command = (sys.executable, "-m", "hotloop", "bandit", "grid", "ucb", "c=0.01:5:0.01")
    child = subprocess.Popen(
        [*command, "--runs", "20000", *args], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    give_up_at = time.monotonic() + 120
    while not (folder / "grid.sqlite-wal").exists() or size_of(folder) < 1_500_000:
        assert child.poll() is None
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    return child


def size_of(folder):
    return (folder / "grid.sqlite-wal").stat().st_size


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_grid_leaves_only_its_file(capsys, folder, number):
    child = start(folder)
    child.send_signal(number)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 128 + number
    assert re.search(
        r"hotloop: stopped with \d+ of 500 points complete in grid.sqlite, and finished parts of "
        r"the others: run the same command to resume\n$",
        err,
    )
    # Only the file remains, and it contains a grid.
    assert [path.name for path in folder.iterdir()] == ["grid.sqlite"]
    code, out, _ = grid(capsys, "ucb", "c=0.01:0.08:0.01", "--runs", 2048, "--json")
    assert code == 0
    assert json.loads(out)["computed_run_steps"] == 0


def test_live_on_a_terminal(folder):
    outer, inner = pty.openpty()
    command = (sys.executable, "-m", "hotloop", "bandit", "grid", "ucb", "c=0.1:5:0.1")
    child = subprocess.Popen(
        [*command, "--runs", "4000"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=inner,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(inner)
    output = b""
    while True:
        try:
            piece = os.read(outer, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(outer)
    assert child.wait(200) == 0
    lines = re.findall(
        r"(\d+)/50 points · (\d+)% of 200 M run·steps · \S+ \w?/s · ", output.decode()
    )
    assert len(lines) > 1
    assert [int(share) for _, share in lines] == sorted(int(share) for _, share in lines)


def test_lines_in_a_log(folder, capsys, monkeypatch):
    from hotloop.cli.bandit import grid as command
    from hotloop.cli.bandit import grid_output

    def progress_text(status):
        return f"{status.finished_points} of {status.total_points}"

    line = grid_output.GridLine()
    line._interval_s, line._next_at = 0.0, 0.0
    monkeypatch.setattr(command, "GridLine", lambda: line)
    monkeypatch.setattr(grid_output, "progress_text", progress_text)
    code, _, err = grid(capsys, "ucb", "c=1,2", *SMALL)
    assert code == 0
    assert err.splitlines()[0] == "0 of 2"
    assert err.splitlines()[-1] == "2 of 2"


def test_help(capsys):
    code, out, _ = grid(capsys, "--help")
    assert code == 0
    assert "epsilon=2**-7:2**-2:x2" in out
    assert "grid.sqlite" in out
