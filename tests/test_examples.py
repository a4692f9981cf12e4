"""The scripts in examples/ run, are short and are listed; the notebooks are in another test."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import timing
from hotloop.cli import main
from tests.conftest import ONE_RAY
from tests.warm_pool import use_warm_pool

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
# Text that the script prints, by the script's name. Each trains for few steps.
PRINTED = {
    "train": r"mean return of 10 evaluation episodes: \d",
    "own_environment": r"mean return: -?\d",
    "own_network": r"mean return: \d",
    "own_algorithm": r"mean return: \d",
    "masks": r"next box: [0-4]",
    "memory": r"first actions: \[[01], [01], [01]\]",
    "on_ray": r"mean return: \d",
    "sweep": r"score: \d",
    "sb3": r"mean return: \d.* trained by stable_baselines3",
    "profile_script": r"1 process, \d",
}
MARKS = {"on_ray": ONE_RAY, "sweep": [pytest.mark.slow], "sb3": [pytest.mark.slow]}
NAMES = [pytest.param(name, marks=MARKS.get(name, [])) for name in PRINTED]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "1024"])
    use_warm_pool(monkeypatch)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    timing.stop()
    assert re.search(PRINTED[name], capfd.readouterr().out)


def commands() -> list[tuple[str, str]]:
    """Return the name and the arguments of each `hotloop` command in a script's docstring."""
    return [
        (name, command)
        for name in PRINTED
        for command in re.findall(
            r"^    (?:cd examples && )?hotloop (.*)$",
            (EXAMPLES / f"{name}.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]


@pytest.mark.parametrize(("name", "command"), commands())
def test_a_command_in_a_docstring_is_understood(name, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    args = command.split()
    if args[0] == "train":
        args += ["--save-config", str(tmp_path / "read.toml")]
        assert main(args) == 0, capsys.readouterr().err
        assert f"{name}:" in command
    else:
        assert args == ["accelerate", f"examples/{name}.py"]


@pytest.mark.slow
def test_the_script_for_stable_baselines3_runs_accelerated(tmp_path):
    command = [sys.executable, "-m", "hotloop", "accelerate", str(EXAMPLES / "sb3.py"), "1024"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert re.search(r"trained by hotloop\.accelerate", result.stdout)


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_every_example_is_in_the_table():
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^\| \[`[^`]+`\]\(([^)]+)\)", table, re.MULTILINE))
    files = {
        path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__")
    }
    assert entries == files
