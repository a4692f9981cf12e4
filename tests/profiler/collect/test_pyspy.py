"""py-spy beside the program: what goes wrong with it is told in a sentence, and stops nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.profiler.collect import pyspy
from hotloop.profiler.render import flame
from hotloop.profiler.session.reading import read

DENIED = (
    "Error: Failed to open process 4711\n"
    "Permission Denied: Try running again with elevated permissions by going 'sudo ...'\n"
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a shell script in py-spy's place, which finds its output's path in $output.

    `dump` is what it does when it is asked for one dump, to see whether it may.
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
        monkeypatch.setattr(pyspy, "_find", lambda: str(program))

    return install


def test_it_samples_all_processes_without_stopping_them(fake, tmp_path):
    fake('echo "<module> (a.py:1) 3" > "$output"')
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt", rate=50)
    assert spy.stop() is None
    assert spy.stop() is None
    assert (tmp_path / "arguments").read_text() == (
        "record --pid 4711 --subprocesses --format raw --rate 50 --nonblocking --full-filenames "
        f"--function --output {tmp_path}/py-spy.txt\n"
    )
    (stack,) = flame.read_folded(tmp_path / "py-spy.txt")
    assert stack[-1].file == "a.py"


def test_it_is_asked_to_end_when_only_it_goes_on(fake, tmp_path):
    # The shell waits for the end of what it runs before it handles a signal: the loop is its own.
    fake('trap \'echo "f (a.py:1) 1" > "$output"; exit 0\' INT\nwhile :; do sleep 0.05; done')
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    time.sleep(0.3)  # for the trap to be set
    assert spy.stop(grace_s=0.5) is None
    assert (tmp_path / "py-spy.txt").read_text() == "f (a.py:1) 1\n"


def test_it_is_killed_when_it_does_not_end(fake, tmp_path):
    fake(f"echo $$ > {tmp_path}/pid\ntrap '' INT\nwhile :; do sleep 0.05; done")
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    problem = "py-spy did not end in time: its stacks are missing"
    assert spy.stop(grace_s=0.1) == problem
    assert spy.stop() == problem
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    assert spy.stop() == "py-spy is not installed: pip install 'hotloop[profile]' brings it"


def test_it_is_found_beside_python_and_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for folder in ("path", "bin"):
        program = tmp_path / folder / "py-spy"
        program.parent.mkdir()
        program.write_text("")
        program.chmod(0o755)
        assert pyspy._find() == str(program)


def test_what_cannot_be_started(tmp_path, monkeypatch):
    (tmp_path / "py-spy").write_bytes(b"\x7fELF")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setattr(pyspy, "_find", lambda: str(tmp_path / "py-spy"))
    problem = pyspy.attach(4711, tmp_path / "py-spy.txt").stop()
    assert problem is not None
    assert problem.startswith("py-spy could not be started: ")


@pytest.mark.parametrize(
    ("scope", "container", "what"),
    [
        (3, False, "kernel.yama.ptrace_scope is 3, which forbids it until the next boot"),
        (1, True, "a container needs the capability for it, start it with --cap-add SYS_PTRACE"),
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
def test_it_may_not_trace(fake, tmp_path, monkeypatch, scope, container, what, at_once):
    denied = f'echo "{DENIED}" >&2; exit 1'
    fake(**{"dump": denied, "script": ""} if at_once else {"script": denied})
    monkeypatch.setattr(pyspy, "_ptrace_scope", lambda: scope)
    monkeypatch.setattr(pyspy, "_in_container", lambda: container)
    spy = pyspy.attach(4711, tmp_path / "py-spy.txt")
    assert spy.stop() == f"py-spy may not trace the program: {what}"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "echo 'Error: No python processes found in process 4711 or any of its subprocesses'"
            ">&2; exit 1",
            "py-spy found no Python to sample: the program ended too soon, or has none",
        ),
        (
            ": > $output",
            "py-spy took no samples: the program ended too soon, or did not use a core",
        ),
        ("echo first >&2; echo last >&2; exit 3", "py-spy failed with exit code 3: last"),
        (
            "echo 'Error: it broke\n\nStack backtrace:\n  0: main' >&2; exit 3",
            "py-spy failed with exit code 3: it broke",
        ),
        ("exit 3", "py-spy failed with exit code 3: it does not say why"),
    ],
)
def test_other_failures(fake, tmp_path, script, problem):
    fake(script)
    assert pyspy.attach(4711, tmp_path / "py-spy.txt").stop() == problem


def test_where_it_looks_for_a_container_and_for_permission(tmp_path):
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
        timeout=60,
    )


def test_a_failure_is_in_the_report_and_the_program_goes_on(tmp_path):
    hidden = "import sys; from hotloop.profiler.collect import pyspy; pyspy._find = lambda: None; "
    start = ("-c", hidden + "from hotloop import cli; sys.exit(cli.main(sys.argv[1:]))")
    done = profile(tmp_path, "--py-spy", seconds=0.2, start=start)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert "py-spy is not installed: pip install 'hotloop[profile]' brings it" in done.stderr
    assert read(tmp_path / "profile").problems == [
        "py-spy is not installed: pip install 'hotloop[profile]' brings it"
    ]


@pytest.mark.outside
def test_the_real_one(tmp_path):
    if pyspy._find() is None:
        pytest.skip("py-spy is not installed")
    done = profile(tmp_path, "--py-spy", seconds=3)
    assert (done.returncode, done.stdout) == (3, "done\n")
    problems = read(tmp_path / "profile").problems
    if problems and "may not trace" in problems[0]:
        pytest.skip(problems[0])
    assert problems == []
    stacks = flame.read_folded(tmp_path / "profile" / "py-spy.txt")
    burnt = sum(
        weight
        for stack, weight in stacks.items()
        if any(frame.function == "burn" and frame.file.endswith("script.py") for frame in stack)
    )
    assert burnt > 1e9
