"""Commands that README.md and the pages show are taken by the real command line.

A command is a line of a block whose first line is one, or a line behind a prompt. Of hotloop's
commands the options are read, and nothing is begun; the cheap ones are run. `make` must have the
target, `pip install` the extra. What can't be tried is in `NOT_TRIED`, with its reason. Blocks of
Python are run by tests/test_pages.py. Tutorials are walked by tests/docs/test_tutorials.py.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.catalog import BENCHES
from hotloop import cli
from tests.docs.site import ROOT

ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if page.parent.name != "tutorials"]
NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in PAGES]
# Beginnings of lines that are commands; the rest of such a block may be what they print.
COMMANDS = re.compile(r"(\$ |(hotloop|pip|python|make|ray|py-spy|austin|perf|git|kubectl|sbatch) )")
# By their beginning: why nothing of them is tried.
NOT_TRIED = {
    "ray start": "would start a server on this machine",
    "python -m pstats": "reads a file that the line before has written",
    "python cleanrl/": "is CleanRL's",
    "python bench/accelerate/carry.py": "needs a network",
}
# Those that take a moment are run as they stand, the bandits with few runs.
RUN = ("doctor", "presets", "plan", "--version")
SMALLER = {"--runs": "20", "--steps": "50"}
FENCES = {
    "",
    "bash",
    "text",
    "python",
    "sh",
    "console",
    "toml",
    "yaml",
    "json",
    "{toctree}",
    "{eval-rst}",
    "pycon",
}


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block of code; an indented one has none."""
    fence = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for language, block in fence.findall(text):
        yield language, block
    rest = fence.sub("", text)
    for block in re.findall(r"(?<=\n\n)((?:    .*\n|\n)+)", rest):
        yield "", "\n".join(line[4:] for line in block.strip("\n").split("\n"))


def commands(text: str) -> list[str]:
    """The commands of a page, continued lines as one, without comments."""
    found = []
    for language, block in blocks(text):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if language in ("sh", "bash", "console", "") and lines and COMMANDS.match(lines[0]):
            found += [line.removeprefix("$ ") for line in lines if COMMANDS.match(line)]
    return [re.sub(r"\s+# .*", "", line) for line in found]


class Read(BaseException):
    """The options were read; nothing that handles errors catches it."""


@pytest.fixture
def read_alone(monkeypatch):
    """Commands end once their options are read."""

    def ending(method):
        def read(parser, *args, **options):
            method(parser, *args, **options)
            raise Read

        return read

    for name in ("parse_args", "parse_known_intermixed_args"):
        method = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, ending(method))
    monkeypatch.setattr("hotloop.cli.sweep._go", lambda *args: 0)


def of_hotloop(args: list[str], tmp_path: Path) -> int:
    """What the command line says of a command, by its exit code."""
    if args[0] == "train":
        if "…" in args:  # whatever is trained, in workers
            at = args.index("…")
            args = [*args[:at], "ppo", "--workers", "2", *args[at + 1 :]]
        if not {"--help", "--save-config"} & set(args):
            args = [*args, "--save-config", str(tmp_path / "read.toml")]
    if args[0] == "profile":
        from hotloop.cli import profile

        own, rest = profile.split(args[1:])
        profile._parse(own)
        assert rest
        return of_hotloop(rest, tmp_path) if rest[0] in profile._OWN else 0
    try:
        return cli.main(args)
    except Read:
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)


def is_understood(command: str, tmp_path: Path) -> bool:
    """Whether what is called has what the command asks of it."""
    args = shlex.split(command.partition(" & ")[0])
    if args[0] == "hotloop":
        return of_hotloop(args[1:], tmp_path) == 0
    if "hotloop" in args[1:] and args[0] in ("python", "py-spy"):
        return of_hotloop(args[args.index("hotloop") + 1 :], tmp_path) == 0
    if "hotloop)" in args:  # $(which hotloop)
        return of_hotloop(args[args.index("hotloop)") + 1 :], tmp_path) == 0
    if args[:3] == ["python", "-m", "bench"]:
        return args[3] in BENCHES
    if args[:2] == ["pip", "install"]:
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        extras = re.search(r"\[([a-z,]+)\]", command)
        return extras is None or all(
            re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras[1].split(",")
        )
    if args[0] == "make":
        done = subprocess.run(["make", "--dry-run", *args[1:]], cwd=ROOT, capture_output=True)
        return done.returncode == 0
    return False


def in_small(command: str) -> list[str] | None:
    """The arguments of a command that takes a moment, so that it does; None: it takes longer."""
    program, *args = shlex.split(command.partition(" & ")[0])
    if program != "hotloop" or not args:
        return None
    if args[0] in RUN:
        return args
    if args[0] != "bandit" or args[1] not in ("figure", "run", "compare", "grid"):
        return None
    for option, value in SMALLER.items():
        if option in args:
            args[args.index(option) + 1] = value
        else:
            args += [option, value]
    return args


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_understood(page, tmp_path, monkeypatch, read_alone, capsys):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if file := re.match(r"# (\w+\.py)\n", block):  # a file that commands name
            Path(file[1]).write_text(block)
    refused = [
        f"{command}\n{capsys.readouterr().err}"
        for command in commands(text)
        if not command.startswith(tuple(NOT_TRIED))
        and not in_small(command)
        and not is_understood(command, tmp_path)
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_cheap_commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in commands(page.read_text(encoding="utf-8")):
        if args := in_small(command):
            assert cli.main(args) == 0, f"{command}\n{capsys.readouterr().err}"


def test_what_is_not_tried_is_still_shown():
    shown = [command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    unknown = [why for why in NOT_TRIED if not any(command.startswith(why) for command in shown)]
    assert len(shown) > 100
    assert not unknown


def test_fences_have_languages_that_are_known():
    unknown = [
        f"{page.relative_to(ROOT)}: {language}"
        for page in ALL
        for language, _ in blocks(page.read_text(encoding="utf-8"))
        if language not in FENCES
    ]
    assert not unknown, "\n".join(unknown)
