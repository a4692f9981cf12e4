"""Text from outside does not control the terminal."""

import contextlib
import io
import sys

import pytest

from hotloop import cli
from hotloop.base import streams

# A color, a title, a bell, the C1 form of an escape, a carriage return, a change of direction, and
# a byte that is no UTF-8.
CONTROLS = ["\x1b[31m", "\x1b]0;title\x07", "\x07", "\x9b31m", "\r", "\x7f", "\u202e", "\udce9"]
INVISIBLE = ["\u200b", "\u2060", "\u2063", "\u00ad", "\u180e", "\U000e0041", "\ufeff"]
COMMANDS = [
    "NAME",
    "runs NAME",
    "report NAME",
    "eval NAME",
    "export NAME --format numpy",
    "plot NAME",
]
COMMANDS += ["resume NAME", "compare NAME NAME", "profile NAME", "runs --NAME"]


def is_plain(text):
    return not any(control[0] in text for control in CONTROLS)


@pytest.mark.parametrize("control", CONTROLS + INVISIBLE)
def test_control_characters_are_replaced(control):
    text = streams.printable(f"a{control}b")
    assert text.startswith("a\N{REPLACEMENT CHARACTER}")
    assert is_plain(text)
    assert control[0] not in text


def test_other_text_stays_as_it_is():
    text = "größer, 行, 😀, می\u200cخواهم, 👩\u200d💻, a\tb\nc, ±1\N{NO-BREAK SPACE}ms"
    assert streams.printable(text) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_repeats_them(monkeypatch, tmp_path, kind, command):
    monkeypatch.chdir(tmp_path)
    for control in CONTROLS:
        out, err = kind(), kind()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with contextlib.suppress(SystemExit):  # of argparse
            assert cli.main([word.replace("NAME", f"x{control}y") for word in command.split(" ")])
        printed = out.getvalue() + err.getvalue()
        assert "x\N{REPLACEMENT CHARACTER}" in printed, repr(control)
        assert is_plain(printed), repr(control)


def test_tables_are_plain_and_keep_their_colors(monkeypatch):
    from rich.text import Text

    from hotloop.base.text_tables import plain_table, print_table, wide_console

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with streams.steady_output():
        table = plain_table()
        table.add_column("a name")
        table.add_row(Text("x\x1b]y", style="red"))
        print_table(table, wide_console())
    printed = terminal.getvalue()
    assert "\x1b[31mx\N{REPLACEMENT CHARACTER}]y" in printed


def test_output_of_other_packages_passes(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with streams.steady_output():
        print("\x1b[31mof an environment")
    assert out.getvalue() == "\x1b[31mof an environment\n"
