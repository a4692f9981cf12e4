"""The report of a running program, on a terminal's screen."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hotloop import cli, profiler
from hotloop.profiler.render import live
from tests.profiler.sessions import process, sample, session

SCRIPT = """
import sys, time
assert not sys.stdout.isatty()
print("hello")
end = time.time() + 1.5
while time.time() < end:
    sum(range(1000))
raise SystemExit(3)
"""


def test_the_screen_has_the_last_lines_of_the_report(tmp_path: Path) -> None:
    example = session(process(samples=[sample("main (train.py:9)", elapsed_s=5.0, on_core_s=5.0)]))
    profiler.save(example, tmp_path / "session.npz")
    report = live.live_report(tmp_path / "session.npz", 80)
    console = Console(file=io.StringIO(), width=80, height=6)
    console.print(live.LastLines(report))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]
    assert len(lines) <= 5
    assert any("train.py:9 in main" in line for line in lines)


def test_before_the_first_samples_and_with_damaged_files(tmp_path: Path) -> None:
    assert live.live_report(tmp_path, 80) == "waiting for the first samples"
    (tmp_path / "timing").mkdir()
    (tmp_path / "timing" / "main-1.samples.jsonl").write_text('{"version": 1}\n')
    assert live.live_report(tmp_path, 80) == "waiting for the first samples"


def test_without_a_terminal_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    assert cli.main(["profile", "--live", "train.py"]) == 2
    assert "`--live` needs a terminal" in capsys.readouterr().err
    assert not (tmp_path / "profiles").exists()


def test_in_a_terminal_the_output_follows_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "hotloop", "profile", "--live", "--out", "p", "train.py"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=secondary, stdout=secondary, stderr=secondary,
    ) as program:  # fmt: skip
        os.close(secondary)
        output = b""
        while True:
            try:
                output += os.read(primary, 65536)
            except OSError:  # the terminal is closed
                break
    os.close(primary)
    assert program.returncode == 3
    screen, separator, after = output.decode().partition("\x1b[?1049l")
    assert separator, "the screen is restored"
    assert re.search("waiting for the first samples|main", screen)
    assert "hello" not in screen
    assert "hello" in after
    assert "exit code 3" in after
    assert not (tmp_path / "p" / "output.txt").exists()
