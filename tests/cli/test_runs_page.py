"""The commands of docs/runs.md run in order."""

import re
import shlex
from pathlib import Path

from hotloop.cli import main
from tests.warm_pool import use_warm_pool

PAGE = Path(__file__).parent.parent.parent / "docs" / "runs.md"


def test_the_pages_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    hotloop (.*)$", PAGE.read_text(), re.MULTILINE)
    assert {command.split()[0] for command in commands} == {
        *("train", "runs", "plot", "eval", "export", "doctor", "presets", "report")
    }
    use_warm_pool(monkeypatch)
    smaller = {"100000": "1024", "50000": "1024", "20": "2"}
    for command in commands:
        args = [smaller.get(arg, arg) for arg in shlex.split(command)]
        if args[0] == "train" and "--save-config" not in args:
            args += ["--execution", "eager", "--update-epochs", "1"]
        if "on" in args:  # lanes
            args += ["--jobs", "1"]
        if args[0] == "eval" and "--episodes" not in args:
            args += ["--episodes", "1"]
        assert main(args) == 0, capsys.readouterr().err
    for path in (
        "learning_curves.png",
        "curves.svg",
        "cartpole.mp4",
        "policy/policy.npz",
        "slow.html",
    ):
        assert (tmp_path / path).exists()
    assert (tmp_path / "runs" / "slow" / "export" / "policy.onnx").exists()
