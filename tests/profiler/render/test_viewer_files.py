"""Files for other viewers, written by `hotloop report` after `hotloop profile`."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.profiler.session.saving import save
from tests.attempts import attempts
from tests.profiler.render.test_flame import boxes, check_speedscope
from tests.profiler.render.test_trace import check_trace, phase_events
from tests.profiler.sessions import process, sample, session, span


@pytest.fixture
def session_path(tmp_path: Path) -> str:
    """Save a session and return its path."""
    samples = [
        sample("main (/t.py:1)", elapsed_s=4.0, on_core_s=1.0),
        sample("main (/t.py:1)", "wait (/t.py:9)", elapsed_s=2.0),
    ]
    example = session(
        process(spans=[span("step", 0.0, 1.0), span("step", 2.0)], samples=samples),
        process("worker-0", role="worker", pid=200, samples=samples),
        process("worker-1", role="worker", pid=201, state="killed", samples=samples),
    )
    save(example, tmp_path / "session.npz")
    return str(tmp_path / "session.npz")


def test_all_files_at_once(session_path, tmp_path, capsys):
    names = {"--trace": "t.json.gz", "--flame": "f.svg", "--speedscope": "s.json"}
    names["--folded"] = "new/stacks.txt"
    options = [part for name, file in names.items() for part in (name, str(tmp_path / file))]
    assert main(["report", session_path, *options]) == 0
    captured = capsys.readouterr()
    assert "worker-1 (killed)" in captured.out
    assert captured.err.splitlines() == [f"wrote {tmp_path / file}" for file in names.values()]
    content = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    check_trace(content)
    # The session file contains open spans and killed processes.
    assert [e.get("args") for e in phase_events(content, "X")] == [None, {"still open": True}]
    assert [e["pid"] for e in phase_events(content, "i")] == [201]
    assert [
        e["args"]["name"] for e in phase_events(content, "M") if e["name"] == "thread_name"
    ] == ["MainThread"] * 3
    check_speedscope(json.loads((tmp_path / "s.json").read_text()))
    assert [b["name"] for b in boxes(tmp_path / "f.svg") if b["depth"] == 1] == [
        "main",
        "worker-0",
        "worker-1",
    ]
    assert (tmp_path / "new" / "stacks.txt").read_text().splitlines() == [
        f"{name};main (/t.py:1){inner} {weight}"
        for name in ("main", "worker-0", "worker-1")
        for inner, weight in (("", 4_000_000_000), (";wait (/t.py:9)", 2_000_000_000))
    ]


def test_by_another_time_and_with_merged_workers(session_path, tmp_path, capsys):
    path = tmp_path / "stacks.txt"
    assert main(["report", session_path, "--folded", str(path), "--by", "on-core"]) == 0
    assert path.read_text().splitlines()[0] == "main;main (/t.py:1) 1000000000"
    command = ["report", session_path, "--folded", str(path), "--by", "blocked", "--merge-workers"]
    assert main(command) == 0
    assert path.read_text().splitlines() == [
        "main;main (/t.py:1) 3000000000",
        "main;main (/t.py:1);wait (/t.py:9) 2000000000",
        "workers;main (/t.py:1) 6000000000",
        "workers;main (/t.py:1);wait (/t.py:9) 4000000000",
    ]


def test_recordings_of_other_profilers_are_drawn(tmp_path, capsys):
    (tmp_path / "a.austin").write_text("P7;T0:7;/e.py:step:3 500\n")
    command = ["report", str(tmp_path / "a.austin"), "--flame", str(tmp_path / "f.svg")]
    assert main(command) == 0
    assert [b["name"] for b in boxes(tmp_path / "f.svg")] == ["all", "main", "step"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--folded", "{}"], 1, "{} can't be written (Is a directory): choose another path"),
        (
            ["--trace", "/dev/null/t.json"],
            1,
            "/dev/null/t.json can't be written (a parent is not a directory): choose another path",
        ),
        (["--flame", "{}/f.html"], 2, "`--flame` must end in .svg, got '{}/f.html'"),
        (["--html", "{}/f.txt"], 2, "`--html` must end in .html or .htm, got '{}/f.txt'"),
        (["--trace", "{}/t.foo"], 2, "`--trace` must end in .json or .json.gz, got '{}/t.foo'"),
        (["--speedscope", "{}/s"], 2, "`--speedscope` must end in .json, got '{}/s'"),
        (["--by", "blocked"], 2, "expected --flame, --speedscope or --folded with `--by`"),
        (
            ["--trace", "{}/t.json", "--merge-workers"],
            2,
            "expected --flame, --speedscope or --folded",
        ),
    ],
)
def test_errors_are_one_line(session_path, tmp_path, capsys, options, code, message):
    options = [option.format(tmp_path) for option in options]
    assert main(["report", session_path, *options]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hotloop: {message.format(tmp_path)}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session.npz"]


SCRIPT = """
import os
import time

from hotloop.timing import span

def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

def child():
    with span("env_step"):
        burn(1.6)

with span("iteration"):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    with span("queue", kind="wait"):
        os.waitpid(pid, 0)
    burn(0.5)
"""


def test_profile_and_report_commands(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    files = ("--trace", "t.json", "--flame", "f.svg", "--speedscope", "s.json", "--folded", "f.txt")

    def measure(number: int) -> Path:
        folder = tmp_path / str(number)
        folder.mkdir()
        for arguments in (
            ("profile", "--out", "one", "--", "../script.py"),
            ("report", "one", *files),
        ):
            command = [sys.executable, "-m", "hotloop", *arguments]
            subprocess.run(command, check=True, cwd=folder, capture_output=True)
        return folder

    def within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
        starts_inside = outer["ts"] <= inner["ts"]
        return starts_inside and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e4

    for folder, attempt in attempts(measure):
        content = json.loads((folder / "t.json").read_text())
        check_trace(content)
        spans = {event["name"]: event for event in phase_events(content, "X")}
        assert spans.keys() == {"iteration", "queue", "env_step"}
        assert spans["queue"]["cat"] == "wait"
        assert spans["env_step"]["pid"] != spans["queue"]["pid"]
        # Both processes use one clock: the child's step lies within the parent's wait.
        assert spans["env_step"]["dur"] > 1.59e6
        assert within(spans["env_step"], spans["iteration"])
        assert within(spans["queue"], spans["iteration"])

        check_speedscope(json.loads((folder / "s.json").read_text()))
        names = {box["name"] for box in boxes(folder / "f.svg")}
        assert names >= {"all", "main", "burn", "child"}
        lines = [line.rsplit(" ", 1) for line in (folder / "f.txt").read_text().splitlines()]
        burn_stack = re.compile(r"main;.*;burn \(\S*script\.py:7\)")
        main_s = sum(int(w) / 1e9 for stack, w in lines if burn_stack.fullmatch(stack))
        child_s = sum(int(w) / 1e9 for stack, w in lines if ";[env_step];" in stack)
        queue_s = sum(int(w) / 1e9 for stack, w in lines if ";[iteration];[queue];" in stack)
        with attempt:
            assert 0.15 < main_s < 2.0
            assert 0.5 < child_s < 5.0
            assert 0.5 < queue_s < 5.0
