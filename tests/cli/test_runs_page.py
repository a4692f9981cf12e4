"""The commands of docs/runs.md and docs/seeds.md run in order."""

import re
import shlex
from pathlib import Path

import pytest

from hotloop.cli import main
from tests.warm_pool import use_warm_pool

DOCS = Path(__file__).parent.parent.parent / "docs"
RUNS = {"train", "runs", "plot", "eval", "export", "report"}
FILES = ["learning_curves.png", "curves.svg", "cartpole.mp4", "policy/policy.npz", "slow.html"]


@pytest.mark.parametrize(
    ("page", "names", "files"),
    [
        ("runs.md", RUNS, [*FILES, "runs/slow/export/policy.onnx"]),
        ("seeds.md", {"train"}, ["fast.toml"]),
    ],
)
def test_the_pages_commands(page, names, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    commands = re.findall(r"^    hotloop (.*)$", text, re.MULTILINE)
    assert {command.split()[0] for command in commands} == names
    use_warm_pool(monkeypatch)
    smaller = {"100000": "256", "50000": "256", "20": "2"}
    for command in commands:
        args = [smaller.get(arg, arg) for arg in shlex.split(command)]
        if args[0] == "train" and "--save-config" not in args:
            args += ["--execution", "eager", "--update-epochs", "1", "--num-steps", "32"]
        if "on" in args:  # lanes
            args += ["--jobs", "1"]
        if args[0] == "eval" and "--episodes" not in args:
            args += ["--episodes", "1"]
        assert main(args) == 0, capsys.readouterr().err
    assert all((tmp_path / path).exists() for path in files)
