"""One-process training and profiling need no Linux; other commands report that they need it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.attempts import attempts

ROOT = Path(__file__).parent.parent
THERE = Path(__file__).parent / "other_system"


CODE = """
import contextlib, io, json, sys
import hotloop.cli

assert OTHER_SYSTEM
for command in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = hotloop.cli.main(command)
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code or 0, out.getvalue(), error.getvalue()]))
"""


def hotloop(directory: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the errors of each command, all in one process."""
    path = os.pathsep.join([str(THERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    # A profiled script runs in another process and prints itself.
    results = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    return [(code, out, error + result.stderr) for code, out, error in results]


def test_one_process_trains_and_workers_report_their_requirements(tmp_path):
    train = [
        "train",
        "ppo",
        "--env-id",
        "CartPole-v1",
        "--total-timesteps",
        "1024",
        "--execution",
        "eager",
    ]
    trained, evaluated, refused, doctor = hotloop(
        tmp_path,
        [*train, "--run-dir", "run"],
        ["eval", "run", "--episodes", "2"],
        [*train, "--workers", "2"],
        ["doctor"],
    )
    assert trained[0] == 0, trained
    assert (tmp_path / "run" / "learning_curve.png").exists()
    assert "over 2 episodes" in evaluated[1], evaluated
    assert refused[0] == 2
    assert "workers need Linux" in refused[2]
    assert doctor[0] == 0, doctor
    assert "the profiler's clock" in doctor[1]


def test_a_profile(tmp_path):
    (tmp_path / "script.py").write_text("print(sum(i * i for i in range(3_000_000)))\n")

    def measure(number):
        return hotloop(tmp_path, ["profile", "--out", f"profile-{number}", "script.py"])

    for ((code, _, error),), attempt in attempts(measure):
        assert code == 0, error
        assert "this system does not report when a thread is on a core" in error
        with attempt:
            assert re.search(r"script\.py:1 in .+ 100%  +0%  +0%  print", error), error
