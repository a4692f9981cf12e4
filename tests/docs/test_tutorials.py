"""Run every file, command and block of the tutorials from an empty folder, in smaller sizes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop import timing
from hotloop.cli import main
from tests.conftest import ONE_RAY
from tests.docs.pages import DOCS, blocks

TUTORIALS = DOCS / "tutorials"
# Installation commands are skipped.
INSTALL = re.compile(r"pip install |python3 -m venv |\. \.venv/bin/activate$")
# Smaller values of options, and replacements in files.
SMALLER = {
    "train-your-environment": {"--total-timesteps": "2048", "--eval-interval": "1024"},
    "why-is-my-script-slow": {},
    "write-an-algorithm": {"--total-timesteps": "1024"},
    "workers-to-a-cluster": {"--total-timesteps": "1024", "--num-steps": "64"},
    "a-sweep": {"--total-timesteps": "1024", "--trials": "2"},
}
MARKS = {"train-your-environment": [], "workers-to-a-cluster": ONE_RAY}
SMALLER_FILES = {
    "STEPS, START, BATCH, GAMMA = 20_000, 2_000": "STEPS, START, BATCH, GAMMA = 600, 400",
    "total_timesteps=20_000": "total_timesteps=1_024",
}


def test_every_tutorial_is_covered():
    assert {page.stem for page in TUTORIALS.glob("*.md")} == set(SMALLER)


@pytest.mark.parametrize("name", SMALLER)
def test_a_tutorial_lists_requirements_and_next_steps(name):
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    assert "**At the end you have**" in text
    assert "**You need**" in text
    assert "https://download.pytorch.org/whl/cpu" in text
    assert "CUDA" in text
    steps = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert steps == [str(k + 1) for k in range(len(steps))]
    assert "\n## Where to go next\n" in text


def test_the_forecast_matches_the_printed_one(capsys):
    page = blocks(TUTORIALS / "workers-to-a-cluster.md")
    texts = [text for _, text in page]
    (at,) = (k for k, text in enumerate(texts) if text.startswith("hotloop plan"))
    assert main(shlex.split(texts[at])[1:]) == 0
    assert capsys.readouterr().out.strip() == texts[at + 1].strip()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, [pytest.mark.slow])) for name in SMALLER],
)
def test_a_tutorial_runs(name, tmp_path, monkeypatch, capfd):
    if name == "workers-to-a-cluster":
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    names = {"__name__": "page"}
    walked = 0
    try:
        for kind, text in blocks(TUTORIALS / f"{name}.md"):
            if kind == "python":
                walk_python(text, names)
            elif kind == "bash":
                for command in commands_of(text):
                    walk_command(command, SMALLER[name], capfd)
                    walked += 1
    finally:
        timing.stop()
        for module in set(sys.modules) - before:  # modules of the folder
            if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]
    assert walked >= 4


def walk_python(text: str, names: dict) -> None:
    """Write a block to its file, or run it."""
    for part, smaller in SMALLER_FILES.items():
        text = text.replace(part, smaller)
    file = re.match(r"# (\w+\.py)\n", text)
    if file:
        Path(file[1]).write_text(text, encoding="utf-8")
    else:
        exec(compile(text, "page", "exec"), names)


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the arguments of a block's commands, without installations."""
    for line in text.replace("\\\n", " ").splitlines():
        if line and not INSTALL.match(line):
            yield shlex.split(line, comments=True)


def walk_command(command: list[str], smaller: dict[str, str], capfd) -> None:
    """Run a command with smaller numbers and check its exit code."""
    refused = any("mistake" in arg for arg in command)  # a step that shows an error
    for option, value in smaller.items():
        if option in command:
            command[command.index(option) + 1] = value
    if command[0] == "hotloop":
        try:
            code = main(command[1:])
        except SystemExit as end:
            code = end.code or 0
        errors = capfd.readouterr().err
    else:
        assert command[0] == "python", command
        result = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True)
        code, errors = result.returncode, result.stderr
    assert (code != 0) == refused, f"{shlex.join(command)}: {code}\n{errors}"
