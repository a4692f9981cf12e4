"""The real command line accepts the commands in README.md and the pages.

A command is a line of a block whose first line is one, or a line behind a prompt. hotloop's
commands only parse their options; the cheap ones are run. `make` must have the target and
`pip install` the extra. `NOT_TRIED` lists the other commands with a reason. tests/test_pages.py
runs blocks of Python, and tests/docs/test_tutorials.py the tutorials.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import io
import pkgutil
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.catalog import BENCHES
from hotloop import cli
from hotloop.algorithms import ALGORITHMS, find
from hotloop.base.program_arguments import python_arguments
from hotloop.cli.train_options import COMMAND_OPTIONS
from tests.docs.site import ROOT

ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if page.parent.name != "tutorials"]
NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in PAGES]
# First words of commands. Other lines of such a block may be output.
COMMANDS = re.compile(r"(\$ |(hotloop|pip|python|make|ray|py-spy|austin|perf|git|kubectl|sbatch) )")
# Reasons for not trying a command, by its first words.
NOT_TRIED = {
    "hotloop sweep ppo learning_rate=log:1e-5,1e-2 --env-id pettingzoo:": "needs mpe2",
    "py-spy record --subprocesses": "records a script of the reader's",
    "ray start": "would start a server on this machine",
    "python -m pstats": "reads a file that the line before has written",
    "python cleanrl/": "is CleanRL's",
    "python bench/accelerate/wheels.py": "needs a network",
}
OPTION = r"(?<![\w-])--[a-z][a-z0-9-]+"
# Options of the benchmarks and of other programs.
OTHER_OPTIONS = {
    *("--cold", "--deadline", "--part", "--seconds", "--store"),
    *("--full-filenames", "--head", "--index-url", "--no-deps", "--nonblocking"),
    *("--object-store-memory", "--signal", "--cap-add"),
    # Of other profilers.
    *("--subprocesses", "--idle", "--format", "--full", "--memory"),
    *("--gecko", "--pstats", "--collapsed"),
}
# Pages with options of other libraries; tests/docs/test_migrations.py checks hotloop's on them.
FOREIGN_OPTIONS = ("from-cleanrl", "from-sample-factory", "from-pufferlib")
SUBCOMMANDS = [f"bandit {name}" for name in ("figure", "run", "compare", "grid")]
SUBCOMMANDS.append("sweep report")
# Cheap commands are run unchanged, bandits with fewer runs.
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
    "diff",
}


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each code block; an indented block has no language."""
    fence = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for language, block in fence.findall(text):
        yield language, block
    unfenced = fence.sub("", text)
    for block in re.findall(r"(?<=\n\n)((?:    .*\n|\n)+)", unfenced):
        yield "", "\n".join(line[4:] for line in block.strip("\n").split("\n"))


def commands(text: str) -> list[str]:
    """Return the commands of a page with joined continuation lines and without comments."""
    found = []
    for language, block in blocks(text):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if language in ("sh", "bash", "console", "") and lines and COMMANDS.match(lines[0]):
            found += [line.removeprefix("$ ") for line in lines if COMMANDS.match(line)]
    return [re.sub(r"\s+# .*", "", line) for line in found]


class OptionsRead(BaseException):
    """Signals that the options were parsed; a `BaseException` passes error handlers."""


@pytest.fixture
def stop_after_options(monkeypatch):
    """End commands once their options are parsed."""

    def stop_after(method):
        def read(parser, *args, **options):
            method(parser, *args, **options)
            raise OptionsRead

        return read

    for name in ("parse_args", "parse_known_intermixed_args"):
        method = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, stop_after(method))
    monkeypatch.setattr("hotloop.cli.sweep._run", lambda *args, **_: 0)
    monkeypatch.setattr("hotloop.training.precompile.precompile", lambda *args: "left out")


def hotloop_exit_code(args: list[str], tmp_path: Path) -> int:
    """Return the exit code of a command's option parsing."""
    if args[0] == "train":
        if "…" in args:  # any training with workers
            at = args.index("…")
            args = [*args[:at], "ppo", "--workers", "2", *args[at + 1 :]]
        if not {"--help", "--save-config"} & set(args):
            args = [*args, "--save-config", str(tmp_path / "read.toml")]
    if args[0] == "profile":
        from hotloop.cli import profile

        options, program = profile.parser().split_program(args[1:])
        if profile.parser().parse_own(options).pid is not None:
            return int(bool(program))
        assert program
        return hotloop_exit_code(program, tmp_path) if program[0] in profile.OWN_COMMANDS else 0
    if args[0] == "accelerate":  # it would replace this process by the script's
        from hotloop.cli import accelerate

        options, program = accelerate.parser().split_program(args[1:])
        accelerate.parser().parse_own(options)
        return int(not python_arguments(program, "accelerate"))
    if args[0] == "resume":  # the other options are those of the run, which does not exist
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.main(["resume", "--help"])
        known = set(re.findall(OPTION, text.getvalue())) | algorithm_options()
        return int(not set(re.findall(OPTION, " ".join(args))) <= known)
    try:
        return cli.main(args)
    except OptionsRead:
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)


def is_understood(command: str, tmp_path: Path) -> bool:
    """Return whether the called program accepts the command."""
    args = shlex.split(command.partition(" & ")[0])
    if args[0] == "hotloop":
        return hotloop_exit_code(args[1:], tmp_path) == 0
    if "hotloop" in args[1:] and args[0] in ("python", "py-spy"):
        return hotloop_exit_code(args[args.index("hotloop") + 1 :], tmp_path) == 0
    if "hotloop)" in args:  # $(which hotloop)
        return hotloop_exit_code(args[args.index("hotloop)") + 1 :], tmp_path) == 0
    if args[:3] == ["python", "-m", "bench"]:
        return args[3] in BENCHES
    if args[:2] == ["pip", "install"]:
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        extras = re.search(r"\[([a-z,]+)\]", command)
        return extras is None or all(
            re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras[1].split(",")
        )
    if args[0] == "make":
        result = subprocess.run(["make", "--dry-run", *args[1:]], cwd=ROOT, capture_output=True)
        return result.returncode == 0
    return False


def shortened(command: str) -> list[str] | None:
    """Return the arguments of a command, shortened if needed, or None if it takes long."""
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
def test_commands_are_understood(page, tmp_path, monkeypatch, stop_after_options, capsys):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if file := re.match(r"# (\w+\.py)\n", block):  # a file for later commands
            Path(file[1]).write_text(block)
    refused = [
        f"{command}\n{capsys.readouterr().err}"
        for command in commands(text)
        if not command.startswith(tuple(NOT_TRIED))
        and not shortened(command)
        and not is_understood(command, tmp_path)
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_cheap_commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in commands(page.read_text(encoding="utf-8")):
        if args := shortened(command):
            assert cli.main(args) == 0, f"{command}\n{capsys.readouterr().err}"


def test_untried_commands_are_still_shown():
    page_commands = [
        command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))
    ]
    unknown = [
        prefix
        for prefix in NOT_TRIED
        if not any(command.startswith(prefix) for command in page_commands)
    ]
    assert len(page_commands) > 100
    assert not unknown


def test_fences_have_known_languages():
    unknown = [
        f"{page.relative_to(ROOT)}: {language}"
        for page in ALL
        for language, _ in blocks(page.read_text(encoding="utf-8"))
        if language not in FENCES
    ]
    assert not unknown, "\n".join(unknown)


def test_rows_of_tables_are_whole():
    """A row on two lines ends its table, and further cells are not shown."""
    wrong = []
    for page in sorted({*ALL, *ROOT.glob("*.md")}):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            header, *rows = table.splitlines()
            bars = len(re.findall(r"(?<!\\)\|", header))
            for row in rows:
                if not row.endswith("|") or len(re.findall(r"(?<!\\)\|", row)) != bars:
                    wrong.append(f"{page.relative_to(ROOT)}: {row}")
    assert not wrong, "\n".join(wrong)


def inline_code(page: Path) -> list[str]:
    """Return the code spans of a page, outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.fixture(scope="module")
def options_by_command() -> dict[str, set[str]]:
    """Return the options of each command; "" has those of hotloop itself."""
    known = {"": set(re.findall(OPTION, cli.HELP))}
    for command in (*cli.COMMANDS, *SUBCOMMANDS):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.main([*command.split(), "--help"])
        known[command] = set(re.findall(OPTION, text.getvalue())) | {"--help", "--debug"}
    for command in ("train", "sweep", "cache"):  # the last: `cache build`
        known[command] |= algorithm_options()
    known["train"] |= COMMAND_OPTIONS.keys()
    return known


@pytest.fixture(scope="module")
def options(options_by_command) -> set[str]:
    """Return all options of hotloop's commands and algorithms."""
    return set().union(*options_by_command.values())


def named_options(code: str) -> tuple[str, list[str]]:
    """Return the hotloop command of a code span, "" if there is none, and its options."""
    command = re.match(rf"hotloop ({'|'.join((*SUBCOMMANDS, *cli.COMMANDS))})\b", code)
    if command is not None and command[1] in ("profile", "accelerate"):
        code = re.split(r" -m | \S+\.py\b| train ", code)[0]  # a script has its own options
    return command[1] if command else "", re.findall(OPTION, code)


def algorithm_options() -> set[str]:
    """Return the options of all algorithms."""
    configs = [find(name).config for name in ALGORITHMS]
    names = {
        field.name.replace("_", "-") for config in configs for field in dataclasses.fields(config)
    }
    return {f"--{prefix}{name}" for name in names for prefix in ("", "no-")}


@pytest.mark.parametrize("page", ALL, ids=[path.relative_to(ROOT).as_posix() for path in ALL])
def test_the_prose_names_existing_options_objects_and_files(page, options, options_by_command):
    wrong = []
    for code in inline_code(page):
        foreign = page.stem in FOREIGN_OPTIONS or code.startswith(
            ("pip ", "python ", "ray ", "py-spy ", "docker ")
        )
        command, found = named_options(code)
        known = options_by_command[command] if command else options | OTHER_OPTIONS
        wrong += [f"{code}: {option}" for option in found if not foreign and option not in known]
        for name in re.findall(r"(?<![\w/.])hotloop(?:\.\w+)+", code):
            try:
                pkgutil.resolve_name(name)
            except (AttributeError, ImportError):
                wrong.append(name)
        for path in re.findall(r"(?<![\w/.])(?:[\w-]+/)+\w+\.(?:py|c|md|txt|toml)\b", code):
            roots = (ROOT, ROOT / "src", ROOT / "src" / "hotloop", page.parent)
            if "NAME" not in path and not any((root / path).exists() for root in roots):
                wrong.append(path)
    assert not wrong


def advice() -> Iterator[tuple[str, str]]:
    """Yield the place and each quoted piece of code of the package's messages and docstrings."""
    package = Path(cli.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for code in re.findall(r"`([^`\n]+)`", node.value):
                    yield f"{path.relative_to(package)}:{node.lineno}", code


def test_advice_names_existing_options_and_commands(options):
    """What a message or a docstring advises can be typed as it is written."""
    wrong, count = [], 0
    for place, code in advice():
        for option in re.findall(OPTION, code):
            count += 1
            if option not in options | OTHER_OPTIONS:
                wrong.append(f"{place} {option}")
        for command in re.findall(r"(?:^|\$ )hotloop ([a-z]+)", code):
            count += 1
            if command not in cli.COMMANDS:
                wrong.append(f"{place} hotloop {command}")
    assert count > 200
    assert not wrong, "\n".join(wrong)


def test_other_options_are_still_mentioned():
    spans = [code for page in ALL for code in inline_code(page)] + [code for _, code in advice()]
    assert set(re.findall(OPTION, " ".join(spans))) >= OTHER_OPTIONS
