"""py-spy beside a program: its failures are reported in one sentence and stop nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.errors import install_command
from hotloop.profiler.collect import pyspy
from hotloop.profiler.render import flame
from hotloop.profiler.session.reading import read

DENIED = (
    "Error: Failed to open process 4711\n"
    "Permission Denied: Try running again with elevated permissions by going 'sudo ...'\n"
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Return a function that replaces py-spy by a shell script, with its output path in $output.

    `dump` is the shell command for the dump that checks the permission to trace.
    """

    def install(script: str, dump: str = "exit 0") -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "py-spy"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = dump ]; then {dump}; fi\n'
            f'echo "$@" > {tmp_path}/arguments\n'
            'for output in "$@"; do :; done\n'
            f"{script}\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(pyspy, "_find_program", lambda: str(program))

    return install


def test_pyspy_samples_all_processes_without_stopping_them(fake, tmp_path):
    fake('echo "<module> (a.py:1) 3" > "$output"')
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt", rate=50)
    assert spy.stop() is None
    assert spy.stop() is None
    assert (tmp_path / "arguments").read_text() == (
        "record --pid 4711 --subprocesses --format raw --rate 50 --nonblocking --full-filenames "
        f"--output {tmp_path}/py-spy.txt\n"
    )
    (stack,) = flame.folded(read(tmp_path / "py-spy.txt"))
    assert stack[-1].file == "a.py"


def test_pyspy_is_interrupted_after_the_program(fake, tmp_path):
    # A shell handles signals only between commands, so that the loop must run short commands.
    fake(
        f'trap \'echo "f (a.py:1) 1" > "$output"; exit 0\' INT\ntouch {tmp_path}/ready\n'
        "while :; do sleep 0.05; done"
    )
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    assert spy.stop(grace_s=5.0) is None
    assert (tmp_path / "py-spy.txt").read_text() == "f (a.py:1) 1\n"


def test_pyspy_is_killed_after_the_grace_period(fake, tmp_path):
    fake(f"trap '' INT\necho $$ > {tmp_path}/pid\nwhile :; do sleep 0.05; done")
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    problem = "py-spy did not end in time: its stacks are missing"
    assert spy.stop(grace_s=0.1) == problem
    assert spy.stop() == problem
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_pyspy_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    assert spy.stop() == f"py-spy is not installed: {install_command('profile')} installs it"


def test_pyspy_is_found_beside_python_and_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for folder in ("path", "bin"):
        program = tmp_path / folder / "py-spy"
        program.parent.mkdir()
        program.write_text("")
        program.chmod(0o755)
        assert pyspy._find_program() == str(program)


def test_pyspy_cannot_be_started(tmp_path, monkeypatch):
    (tmp_path / "py-spy").write_bytes(b"\x7fELF")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setattr(pyspy, "_find_program", lambda: str(tmp_path / "py-spy"))
    problem = pyspy.attach(4711, tmp_path / "py-spy.txt").stop()
    assert problem is not None
    assert problem.startswith("py-spy could not be started: ")


@pytest.mark.parametrize(
    ("scope", "container", "cause"),
    [
        (3, False, "kernel.yama.ptrace_scope is 3, which forbids it until the next boot"),
        (1, True, "a container needs this capability, start it with --cap-add SYS_PTRACE"),
        (
            1,
            False,
            "kernel.yama.ptrace_scope is 1, run as root or set it to 0 "
            "(sudo sysctl kernel.yama.ptrace_scope=0)",
        ),
        (None, False, "run as the program's user, or as root"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's permissions")
def test_pyspy_may_not_trace(fake, tmp_path, monkeypatch, scope, container, cause, at_once):
    denied = f'echo "{DENIED}" >&2; exit 1'
    fake(**{"dump": denied, "script": ""} if at_once else {"script": denied})
    monkeypatch.setattr(pyspy, "_ptrace_scope", lambda: scope)
    monkeypatch.setattr(pyspy, "_in_container", lambda: container)
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    assert spy.stop() == f"py-spy may not trace the program: {cause}"


NO_PYTHON = "Error: No python processes found in process 4711 or any of its subprocesses"
NO_SAMPLES = "py-spy took no samples: the program ended too soon, or did not use a core"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"echo '{NO_PYTHON}' >&2; exit 1", "py-spy found no Python to sample: the program ended "
         "too soon, or has no Python code"),
        (": > $output", NO_SAMPLES),
        ("echo first >&2; echo last >&2; exit 3", "py-spy failed with exit code 3: last"),
        ("echo 'Error: it broke\n\nStack backtrace:\n  0: main' >&2; exit 3",
         "py-spy failed with exit code 3: it broke"),
        ("exit 3", "py-spy failed with exit code 3: no error message"),
        ("echo 'Error: Unsupported version of Python: 3.16.0' >&2; exit 1",
         "this py-spy does not know Python 3.16.0 yet: update it (`pip install -U py-spy`), or "
         "start the program with `hotloop profile SCRIPT`"),
    ],
)  # fmt: skip
def test_other_failures(fake, tmp_path, script, problem):
    fake(script)
    assert pyspy.attach(4711, tmp_path / "py-spy.txt").stop() == problem


def test_containers_and_permissions_are_detected(tmp_path):
    (tmp_path / "scope").write_text("1\n")
    assert pyspy._ptrace_scope(str(tmp_path / "scope")) == 1
    assert pyspy._ptrace_scope(str(tmp_path / "none")) is None
    assert not pyspy._in_container(tmp_path)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/init.scope\n")
    assert not pyspy._in_container(tmp_path)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/kubepods/besteffort/pod1\n")
    assert pyspy._in_container(tmp_path)
    (tmp_path / "proc" / "1" / "cgroup").unlink()
    (tmp_path / ".dockerenv").write_text("")
    assert pyspy._in_container(tmp_path)


SCRIPT = """
import sys
import time

def burn():
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        sum(range(1000))

burn()
print("done")
sys.exit(3)
"""


def profile(
    tmp_path: Path, *options: str, seconds: float, start: tuple[str, ...] = ("-m", "hotloop")
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *start, "profile", "--out", str(tmp_path / "profile")]
    return subprocess.run(
        [*command, *options, str(tmp_path / "script.py"), str(seconds)],
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_failure_is_reported_and_the_program_continues(tmp_path):
    hidden = "import sys; from hotloop.profiler.collect import pyspy; "
    hidden += "pyspy._find_program = lambda: None; "
    start = ("-c", hidden + "from hotloop import cli; sys.exit(cli.main(sys.argv[1:]))")
    result = profile(tmp_path, "--py-spy", seconds=0.2, start=start)
    assert (result.returncode, result.stdout) == (3, "done\n")
    assert f"py-spy is not installed: {install_command('profile')} installs it" in result.stderr
    assert read(tmp_path / "profile").problems == [
        f"py-spy is not installed: {install_command('profile')} installs it"
    ]


@pytest.mark.outside
def test_real_pyspy_samples_the_program(tmp_path):
    if pyspy._find_program() is None:
        pytest.skip("py-spy is not installed")
    result = profile(tmp_path, "--py-spy", seconds=3)
    assert (result.returncode, result.stdout) == (3, "done\n")
    problems = read(tmp_path / "profile").problems
    if problems and "may not trace" in problems[0]:
        pytest.skip(problems[0])
    assert problems == []
    stacks = flame.folded(read(tmp_path / "profile" / "py-spy.txt"))
    burnt = sum(
        weight
        for stack, weight in stacks.items()
        if any(frame.function == "burn" and frame.file.endswith("script.py") for frame in stack)
    )
    assert burnt > 1e9
