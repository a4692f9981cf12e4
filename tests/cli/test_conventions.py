"""What all commands share: help, JSON, tables that fit the terminal, colors, exit codes."""

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import hotloop.cli
from hotloop.cli import COMMANDS, main
from hotloop.cli.bandit import COMMANDS as BANDITS
from hotloop.cli.command_parser import CommandParser
from tests.hub_server import TOKEN, hub_server
from tests.reports.test_sweep_report import write as write_sweep

PAGE = (Path(__file__).parent.parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
HELP = [
    [],
    *([name] for name in COMMANDS),
    *(["bandit", name] for name in BANDITS),
    *(["sweep", name] for name in ("report", "resume")),
    ["bandit", "run", "ucb"],
    *(["train", name] for name in ("ppo", "sac")),
]
# Commands whose result is data, with arguments. The others are in the table of the page.
EXAMPLES = {
    "sweep report": "sweep report sweep.sqlite --output report",
    "eval": "eval runs/a --episodes 2",
    "runs": "runs runs",
    "plot": "plot runs --output curves.svg",
    "report": "report runs/a",
    "compare": "compare runs/a runs/b",
    "presets": "presets",
    "push": "push runs/a anna/cartpole --episodes 2",
    "plan": "plan --workers 8 --step-ms 1 --cores-per-node 4",
    "doctor": "doctor",
    "cache": "cache",
    "bandit figure": "bandit figure 2.2 --runs 4 --steps 20 --output figure.svg",
    "bandit run": "bandit run ucb --runs 4 --steps 20",
    "bandit compare": "bandit compare ucb 'epsilon-greedy epsilon=0.1' --runs 4 --steps 20",
    "bandit grid": "bandit grid ucb c=1,2 step_size=none,0.1 --runs 4 --steps 20",
}
EXIT_CODES = [
    (0, "runs ."),
    (1, "report nowhere"),
    (1, "eval nowhere"),
    (2, "nonsense"),
    (2, "runs --nonsense"),
    (2, "eval runs/a --episodes 0"),
    (2, "bandit run nobody"),
    (2, "plan --workers x --step-ms 1"),
    (2, "train nothing"),
    (2, "profile nowhere.py"),
]


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def place(copy_trained_run, tmp_path, monkeypatch):
    """Enter a directory with two runs, a sweep and a hub, in an environment without settings."""
    copy_trained_run("ppo", "runs/a")
    copy_trained_run("ppo-workers", "runs/b")
    trials = [{"learning_rate": 10.0**-k, "hidden_sizes": [64, 64]} for k in (2, 4)]
    write_sweep(tmp_path / "sweep.sqlite", *trials)
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with hub_server(monkeypatch, tmp_path / "hub"):
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield


def output(monkeypatch, command, stream):
    """Run a command, and return what it prints on standard output."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        try:
            code = main(shlex.split(command))
        except SystemExit as stop:  # the parser of help
            code = stop.code
    assert code == 0
    return stream.getvalue()


def json_table():
    """Return the kinds and keys of JSON by command, from the page."""
    table = PAGE.partition("<!-- json -->")[2].partition("<!-- end json -->")[0]
    rows = [row.split("|")[1:-1] for row in table.strip().split("\n")[2:]]
    return {cells[0].strip(" `").removeprefix("hotloop "): cells[1:] for cells in rows}


def test_commands_are_thin():
    """A command parses, calls one function and prints. Its logic belongs to another room."""
    files = (Path(hotloop.cli.__file__).parent).rglob("*.py")
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 150} == {}


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_fits_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    text = output(monkeypatch, shlex.join([*command, "--help"]), io.StringIO())
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "\x1b" not in text
    assert " ".join(["hotloop", *command]) in text


# --- JSON -----------------------------------------------------------------------------------------


def test_each_command_prints_json_or_has_a_reason():
    commands = {*COMMANDS, *(f"bandit {name}" for name in BANDITS)} - {"bandit"}
    assert set(json_table()) == commands | set(EXAMPLES)
    for command, (kind, keys) in json_table().items():
        assert (command in EXAMPLES) == kind.strip().startswith(("object", "array")), command
        assert keys.strip()


@pytest.mark.parametrize("command", EXAMPLES)
def test_json_has_the_documented_keys(command, place, monkeypatch):
    kind, keys = json_table()[command]
    text = output(monkeypatch, f"{EXAMPLES[command]} --json", io.StringIO())
    value = json.loads(text)
    assert text.count("\n") == 1
    assert kind.strip().startswith("array" if isinstance(value, list) else "object")
    items = value if isinstance(value, list) else [value]
    assert {key for item in items for key in item} <= set(re.findall(r"`(\w+)`", keys))
    if items:
        assert set(re.findall(r"`(\w+)`", keys.partition(";")[0])) <= set(items[0])


# --- tables and colors ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", EXAMPLES)
def test_tables_fit_the_terminal(command, place, monkeypatch):
    plain = output(monkeypatch, EXAMPLES[command], io.StringIO())
    assert "\x1b" not in plain
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        text = output(monkeypatch, EXAMPLES[command], Terminal())
        assert "\x1b" not in text
        # A sentence has no gap of two blanks after its start. The terminal wraps it.
        lines = [line for line in text.splitlines() if re.search(r"\S.{3,}\S {2,}\S", line)]
        wide = [line for line in lines if len(line) > width]
        assert wide == []


@pytest.mark.parametrize(
    ("variables", "is_terminal", "has_styles"),
    [
        ({}, True, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "0"}, False, False),
    ],
)
@pytest.mark.parametrize("command", ["runs", "presets"])
def test_styles_are_for_terminals(variables, is_terminal, has_styles, command, place, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if is_terminal else io.StringIO()
    text = output(monkeypatch, EXAMPLES[command], stream)
    assert ("\x1b[" in text) == has_styles
    if not is_terminal:  # a row is one line
        rows = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
        assert max(map(len, rows)) > 100 or command == "runs"


# --- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "command"), EXIT_CODES)
def test_exit_codes_and_errors_of_one_line(code, command, place, capsys):
    assert main(shlex.split(command)) == code
    err = capsys.readouterr().err
    assert err.count("\n") == bool(code)
    assert err.startswith("hotloop: ") or not code
    assert f"\n| {code} | " in PAGE


@pytest.mark.parametrize("number", ["-1e3", "-.5", "-1/8"])
def test_a_negative_number_is_a_value(number):
    parser = CommandParser(prog="hotloop resume")
    parser.add_argument("--stop-at-return")
    assert parser.parse_args(["--stop-at-return", number]).stop_at_return == number
