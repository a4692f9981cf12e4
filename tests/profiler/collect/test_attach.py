"""Recording of a running program with py-spy."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.profiler.collect import pyspy
from hotloop.profiler.session.reading import read

RECORDING = {
    "exporter": "py-spy@0.4.3",
    "shared": {"frames": [{"name": "main", "file": "/t.py", "line": 3}]},
    "profiles": [
        {
            "type": "sampled",
            "name": f'Process {os.getpid()} Thread {os.getpid()} "MainThread"',
            "unit": "seconds",
            "startValue": 0,
            "endValue": 2,
            "samples": [[0], [0]],
            "weights": [1.0, 1.0],
        }
    ],
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a program in place of py-spy, which ends after SIGINT."""

    def install(dump: str = "exit 0", is_endless: bool = True) -> None:
        (tmp_path / "recording").write_text(json.dumps(RECORDING))
        program = tmp_path / "fake-py-spy"
        write = f'cp {tmp_path}/recording "$output"'
        wait = "while :; do sleep 0.05; done" if is_endless else write
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = dump ]; then {dump}; fi\necho "$@" > {tmp_path}/arguments\n'
            'for output in "$@"; do :; done\n'
            f"trap '{write}; exit 0' INT\n{wait}\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(pyspy, "_find_program", lambda: str(program))

    return install


@pytest.mark.parametrize("is_endless", [True, False])
def test_a_process_is_recorded_until_it_ends_or_the_time_is_over(
    fake: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_endless: bool,
) -> None:
    fake(is_endless=is_endless)
    out = tmp_path / "p"
    seconds = "2" if is_endless else "200"  # a busy machine starts the program late
    arguments = ["--pid", str(os.getpid()), "--seconds", seconds, "--out", str(out)]
    assert main(["profile", *arguments]) == 0
    assert "--format speedscope --threads --idle" in (tmp_path / "arguments").read_text()
    stderr = capsys.readouterr().err
    message = "hotloop profile: attached to a running program with py-spy: spans, "
    # A program that ends at once may have ended before the message.
    assert stderr.startswith(message) or not is_endless
    assert "t.py:3 in main" in stderr
    assert (out / "report.html").is_file()
    profile = read(out)
    assert profile.problems[0].startswith("attached to a running program")
    assert profile.command[0] == "python"
    assert (profile.end_ns - profile.start_ns) == 2_000_000_000


def test_a_missing_permission_is_one_sentence(
    fake: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(dump='echo "Error: Permission denied" >&2; exit 1')
    assert main(["profile", "--pid", str(os.getpid()), "--out", str(tmp_path / "p")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hotloop: process {os.getpid()} was not recorded: py-spy may not trace")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pid", "4194305"], "expected the id of a running process, got `--pid 4194305`"),
        (["--pid", "1", "train.py"], "expected `--pid N` with `--seconds` and `--out` alone, got"),
        (["--pid", "1", "--no-hooks"], "alone, got '--no-hooks'"),
        (["--pid", "1", "--live"], "alone, got '--live'"),
        (["--pid", "x"], "a positive integer"),
        (["--seconds", "3", "train.py"], "`--seconds` needs `--pid`"),
    ],
)
def test_invalid_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.outside
def test_a_real_program_is_recorded(tmp_path: Path) -> None:
    import subprocess

    if pyspy._find_program() is None:
        pytest.skip("py-spy is not installed")
    script = tmp_path / "spin.py"
    script.write_text("def spin():\n    while True:\n        pass\n\nspin()\n")
    with subprocess.Popen([sys.executable, str(script)]) as program:
        try:
            problem = pyspy.attach(program.pid, tmp_path / "trial.txt").stop(grace_s=1.0)
            if problem is not None:
                pytest.skip(problem)
            out = str(tmp_path / "p")
            assert main(["profile", "--pid", str(program.pid), "--seconds", "2", "--out", out]) == 0
        finally:
            program.kill()
    profile = read(tmp_path / "p")
    functions = {frame.function for stack in profile.main.stacks for frame in stack.frames}
    assert "spin" in functions
    assert profile.command[-1] == str(script)
