"""Training in one process and profiling work without what only Linux has; the rest says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
THERE = Path(__file__).parent / "other_system"


def hotloop(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(THERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    code = "import hotloop.cli, sys; assert OTHER_SYSTEM; sys.exit(hotloop.cli.main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


TRAIN = ("train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "1024")


def test_training_in_one_process(tmp_path):
    done = hotloop(tmp_path, *TRAIN, "--execution", "eager", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "learning_curve.png").exists()
    done = hotloop(tmp_path, "eval", "run", "--episodes", "2")
    assert "over 2 episodes" in done.stdout, done.stderr


def test_workers_say_what_they_need(tmp_path):
    done = hotloop(tmp_path, *TRAIN, "--workers", "2", "--execution", "eager")
    assert done.returncode == 2
    assert "workers need Linux" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_profile(tmp_path):
    (tmp_path / "script.py").write_text("print(sum(i * i for i in range(3_000_000)))\n")
    done = hotloop(tmp_path, "profile", "--out", "profile", "script.py")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "this system does not say when a thread is on a core" in done.stderr
    assert re.search(r"script\.py:1 in .+ 100%  +0%  +0%  print", done.stderr), done.stderr


def test_doctor(tmp_path):
    done = hotloop(tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    assert "the profiler's clock" in done.stdout
