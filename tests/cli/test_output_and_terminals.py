"""Output, terminals and directories neither end a training nor crash a command."""

import ast
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.cli import main
from hotloop.training.live_line import LiveLine
from tests.cli.test_cli import report_at
from tests.runs.run_factory import make_run

ROOT = Path(__file__).parent.parent.parent
SHORT = "--total-timesteps 2048 --num-envs 4 --update-epochs 1 --execution eager"
HOTLOOP = [sys.executable, "-m", "hotloop"]


def environment(**changed):
    """Return this process's environment variables, with buffered output as by default."""
    return {**os.environ, "PYTHONUNBUFFERED": "", **changed}


def assert_whole(run_dir):
    state = json.loads((run_dir / "checkpoints" / "last" / "state.json").read_text())
    assert state["timesteps"] == 2048
    assert (run_dir / "learning_curve.png").exists()
    assert (run_dir / "accounting.json").exists()


# --- encodings ------------------------------------------------------------------------------------

COMMANDS = [
    "resume runs/a --total-timesteps 640",
    f"train ppo {SHORT} --seed 2 --run-dir runs/b",
    "eval runs/a --episodes 2",
    "runs",
    "plot runs",
    "report runs/a",
    "compare runs/a runs/b",
    "export runs/a --format numpy",
    "--help",
    "train --help",
    "train ppo --help",
    *(f"{name} --help" for name in ("resume", "eval", "runs", "plot", "export", "profile")),
    *(f"{name} --help" for name in ("report", "compare", "bandit", "bandit figure")),
    *(f"bandit {name} --help" for name in ("run ucb", "compare", "grid")),
]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_can_not_be_encoded_are_replaced(
    tmp_path, copy_trained_run, monkeypatch, encoding
):
    copy_trained_run("ppo", "runs/a")
    monkeypatch.chdir(tmp_path)
    with open(tmp_path / "out", "w", encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        for command in COMMANDS:
            try:
                code = main(shlex.split(command))
            except SystemExit as stop:
                code = stop.code
            assert code == 0, command
    printed = (tmp_path / "out").read_bytes()
    assert (b" \xb7 mean return " if encoding == "latin-1" else b" ? mean return ") in printed
    assert b"return over steps: " in printed
    assert (tmp_path / "runs" / "b" / "learning_curve.png").exists()


def test_every_text_file_has_an_encoding():
    """The default encoding depends on the machine's locale."""
    source = ROOT / "src" / "hotloop"
    missing = [
        f"{path.relative_to(source)}:{call.lineno}"
        for path in source.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _is_text(call)
    ]
    assert not missing


def _is_text(call):
    """Return whether a call reads or writes text without naming an encoding."""
    if "encoding" in {keyword.arg for keyword in call.keywords}:
        return False
    if ast.unparse(call.func).startswith("distribution("):  # of a package, always UTF-8
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("run", "Popen"):
        return bool({"text", "universal_newlines"} & {node.arg for node in call.keywords})
    is_open = name == "fdopen" or (name == "open" and isinstance(call.func, ast.Name))
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [node.value for node in values if isinstance(node, ast.Constant)]
    is_binary = any(isinstance(mode, str) and "b" in mode for mode in modes)
    return name in ("read_text", "write_text") or (is_open and not is_binary)


# --- output that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a reader that goes away", "a full disk"])
def test_a_training_continues_if_its_output_fails(tmp_path, monkeypatch, capsys, where):
    if where == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    options = ["--workers", "1", "--backend", "inline", "--run-dir", str(tmp_path / "run")]
    env = ["--env-id", "tests.cli.blocking_envs:PrintsAtEachStep"]
    args = ["train", "ppo", *shlex.split(SHORT), *options, *env]
    out = open(descriptor, "w")  # noqa: SIM115  closing it would flush it again
    monkeypatch.setattr(sys, "stdout", out)
    assert main(args) == 0
    assert_whole(tmp_path / "run")
    assert capsys.readouterr().err == (
        "hotloop: standard output can't be written (No space left on device): the rest of it is "
        "lost\n"
        if where == "a full disk"
        else ""
    )


@pytest.mark.parametrize(
    ("after", "code", "message"),
    [
        ("| true", 1, ""),
        ("> /dev/full", 1, "hotloop: standard output can't be written (No space left on device)"),
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("> /dev/full 2> /dev/full", 1, ""),
    ],
)
def test_a_command_reports_failed_output_unless_the_pipe_is_closed(tmp_path, after, code, message):
    make_run(tmp_path / "run")
    command = shlex.join([*HOTLOOP, "runs", str(tmp_path), "--json"])
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} {after}"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == code
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == bool(message)


def test_a_training_continues_if_its_terminal_closes(tmp_path, monkeypatch, capsys):
    """The terminal is not the controlling one, whose end would send a signal."""
    terminal, training_side = os.openpty()

    def read():
        output = b""
        while b"steps" not in output:
            output += os.read(terminal, 1000)
        os.close(terminal)

    reader = threading.Thread(target=read)
    reader.start()
    args = ["train", "ppo", *shlex.split(SHORT), "--run-dir", str(tmp_path / "run")]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", open(training_side, "w"))  # noqa: SIM115
    code = main([*args, "--workers", "1", "--backend", "inline"])
    reader.join()
    assert code == 0, capsys.readouterr().err
    assert_whole(tmp_path / "run")


def test_a_failing_status_line_is_omitted(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("can't be drawn")

    line = LiveLine()
    monkeypatch.setattr("hotloop.training.live_line.progress_text", fail)
    line.show(report_at(50_000))
    line._last_draw_s = -1e9
    line.show(report_at(60_000))
    line.show(report_at(100_000))
    line.close()
    assert line.report.timesteps == 100_000


def test_a_failing_curve_does_not_affect_other_files(tmp_path, monkeypatch, capsys):
    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hotloop.runs.learning_curve.learning_curve", fail)
    args = ["train", "ppo", *shlex.split(SHORT), "--run-dir", str(tmp_path / "run")]
    assert main(args) == 0
    captured = capsys.readouterr()
    assert "The largest cost is" in captured.out
    assert "return over steps: " in captured.out
    assert f"next: hotloop eval {tmp_path / 'run'}\n" in captured.out
    assert captured.err == (
        "hotloop: no learning curve was drawn: OSError: [Errno 28] No space left on device\n"
    )


def test_output_streams_are_restored(tmp_path, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    make_run(tmp_path / "rün")
    assert main(["runs", str(tmp_path)]) == 0
    assert (sys.stdout, out.errors, sys.stderr) == (out, "strict", None)
    assert b"r?n\n" in out.buffer.getvalue()


def test_an_ignored_hangup_stays_ignored():
    """`nohup` relies on this."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_once():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(Interrupted):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# --- terminals and places -------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["0", "1", "5", "", "x", "-1", "1000000000", None])
def test_a_terminal_of_any_width(tmp_path, columns, monkeypatch, capsys):
    """None stands for a real terminal with a single column."""
    monkeypatch.setenv("COLUMNS", columns or "")
    monkeypatch.setenv("LINES", columns or "")
    if columns is None:
        monkeypatch.delenv("COLUMNS")
        monkeypatch.delenv("LINES")
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((1, 1)))
    before = os.environ.get("COLUMNS")
    with pytest.raises(SystemExit) as stop:
        main(["train", "ppo", "--help"])
    assert stop.value.code == 0
    assert "--total-timesteps" in capsys.readouterr().out
    assert os.environ.get("COLUMNS") == before
    make_run(tmp_path / "run")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["runs", str(tmp_path)]) == 0


def test_a_deleted_working_directory_is_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["train", "ppo"]) == 1
    assert capsys.readouterr().err == (
        "hotloop: the current directory can't be found (No such file or "
        "directory): change to another one\n"
    )


def test_a_deleted_working_directory_is_reported_with_dash_m(tmp_path):
    script = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
    script += "os.execv(sys.executable, [sys.executable, '-m', 'hotloop', 'runs'])"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.startswith("hotloop: the current directory can't be found")


# --- environments that don't close ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_interrupted", "code"), [(False, 0), (True, -signal.SIGINT)], ids=["left", "Ctrl-C"]
)
def test_an_environment_that_never_closes(tmp_path, is_interrupted, code):
    """Files and messages are complete before closing, which Ctrl-C ends at once."""
    limit_s = 1000 if is_interrupted else 0.3
    code_text = (
        "import sys\n"
        "from hotloop.envs import closing\n"
        f"closing.CLOSE_S = {limit_s}\n"
        "from hotloop.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    env = ["--env-id", "tests.cli.blocking_envs:NeverCloses"]
    options = ["--run-dir", str(tmp_path / "run"), "--workers", "1", "--backend", "inline"]
    args = ["train", "ppo", *shlex.split(SHORT), *env, *options]
    with subprocess.Popen(
        [sys.executable, "-c", code_text, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        out = ""
        while is_interrupted and "closing" not in out:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            out += line
        if is_interrupted:
            assert "next: " in out.partition("update: ")[2]
            process.send_signal(signal.SIGINT)
        last_output, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert f"next: hotloop eval {tmp_path / 'run'}\n" in out + last_output
    assert_whole(tmp_path / "run")
    warning = "hotloop: warning: closing the environments did not finish\n"
    assert err == ("" if is_interrupted else warning)
