"""py-spy, which samples the program from outside, in addition to the profiler's own sampler.

    spy = attach(pid, "profiles/one/py-spy.txt")
    ...
    problem = spy.stop()  # None, or the reason why there are no stacks

A failure of py-spy does not affect the program. It is reported in one sentence.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from hotloop.errors import install_command

# py-spy ends after the program and its children, and then still has to write its file.
_GRACE_S = 5.0
_UNSUPPORTED = "Unsupported version of Python:"


class PySpy:
    """A running py-spy. Use `attach` to create it.

    Args:
        path: file of the stacks.
        process: py-spy's process; None if it did not start.
        errors: file with its error output.
        problem: reason why it did not start.
    """

    def __init__(
        self,
        path: Path,
        process: subprocess.Popen[bytes] | None,
        errors: IO[bytes] | None,
        problem: str | None,
    ) -> None:
        self.path = path
        self._process = process
        self._errors = errors
        self._problem = problem

    @property
    def is_running(self) -> bool:
        """Whether py-spy still samples."""
        return self._process is not None and self._process.poll() is None

    def interrupt(self) -> None:
        """Make py-spy write its stacks now. The program may continue."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGINT)

    def stop(self, grace_s: float = _GRACE_S) -> str | None:
        """Wait until py-spy has written its stacks, after the program's end. Repeatable.

        Args:
            grace_s: seconds until py-spy is interrupted. After twice as long it is killed.

        Returns:
            None, or one sentence on why there are no stacks.
        """
        process, self._process = self._process, None
        if process is None:
            return self._problem
        code = _wait_for_exit(process, grace_s)
        if code is None:
            self._problem = "py-spy did not end in time: its stacks are missing"
        elif not _has_content(self.path):
            self._problem = _failure_reason(self._read_errors(), code)
        return self._problem

    def _read_errors(self) -> str:
        if self._errors is None:
            return ""
        with suppress(OSError), self._errors as file:
            file.seek(0)
            return file.read(65536).decode("utf-8", "replace")
        return ""


def attach(
    pid: int, path: str | os.PathLike[str], *, rate: int = 100, with_waits: bool = False
) -> PySpy:
    """Start py-spy on a process and its children, if it is installed and permitted.

    It does not pause the processes (`--nonblocking`), so that profiling does not slow them down.

    Args:
        pid: process id of the program.
        path: file of the stacks, which `hotloop report` reads.
        rate: samples per second.
        with_waits: whether to sample waiting threads too, into a speedscope file with one profile
            per thread. Otherwise the file has stacks as text.
    """
    path = Path(path)
    program = _find_program()
    if program is None:
        return PySpy(
            path, None, None, f"py-spy is not installed: {install_command('profile')} installs it"
        )
    if not _may_trace(program, pid):
        return PySpy(path, None, None, f"py-spy may not trace the program: {_tracing_obstacle()}")
    command = [
        program,
        "record",
        *("--pid", str(pid)),
        "--subprocesses",
        *(("--format", "speedscope", "--threads", "--idle") if with_waits else ("--format", "raw")),
        *("--rate", str(rate)),
        "--nonblocking",
        "--full-filenames",
        *("--output", str(path)),
    ]
    try:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (read after the process has ended)
        # In its own session, so that Ctrl-C reaches only the program, which may continue.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        return PySpy(path, None, None, f"py-spy could not be started: {error}")
    return PySpy(path, process, errors, None)


def _find_program() -> str | None:
    """Return the py-spy of this environment, even if it is not activated, or else from PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _may_trace(program: str, pid: int) -> bool:
    """Return whether py-spy may trace a process. With `--subprocesses` it would not report that."""
    try:
        result = subprocess.run(
            [program, "dump", "--pid", str(pid), "--nonblocking"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GRACE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # other problems are reported later
    return not _is_denied(result.stderr.decode("utf-8", "replace"))


def _is_denied(errors: str) -> bool:
    return any(words in errors.lower() for words in ("permission denied", "not permitted"))


def _wait_for_exit(process: subprocess.Popen[bytes], grace_s: float) -> int | None:
    """Return the exit code; None if it had to be killed."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(grace_s)
    process.send_signal(signal.SIGINT)  # py-spy then writes its stacks
    with suppress(subprocess.TimeoutExpired):
        return process.wait(grace_s)
    process.kill()
    process.wait()
    return None


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _failure_reason(errors: str, code: int) -> str:
    if _is_denied(errors):
        return f"py-spy may not trace the program: {_tracing_obstacle()}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    no_python_errors = ("no python processes", "python version", "no such process")
    if any(words in errors.lower() for words in no_python_errors):
        return "py-spy found no Python to sample: the program ended too soon, or has no Python code"
    if code == 0 and not lines:
        return "py-spy took no samples: the program ended too soon, or did not use a core"
    # The error is followed by the stack of py-spy's own calls.
    summary = [line for line in lines if line.startswith("Error:")] or lines[-1:]
    reason = summary[0].removeprefix("Error:").strip() if summary else "no error message"
    _, is_unsupported, version = reason.partition(_UNSUPPORTED)
    if is_unsupported:
        return (
            f"this py-spy does not know Python {version.strip()} yet: update it (`pip install -U "
            "py-spy`), or start the program with `hotloop profile SCRIPT`"
        )
    return f"py-spy failed with exit code {code}: {reason}"


def _tracing_obstacle() -> str:
    """Return the restriction that forbids tracing, and how to remove it."""
    if sys.platform == "darwin":
        return "macOS allows it only for root, run with sudo"
    scope = _ptrace_scope()
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which forbids it until the next boot"
    if _in_container():
        return "a container needs this capability, start it with --cap-add SYS_PTRACE"
    if scope in (1, 2):
        return (
            f"kernel.yama.ptrace_scope is {scope}, run as root or set it to 0 "
            "(sudo sysctl kernel.yama.ptrace_scope=0)"
        )
    return "run as the program's user, or as root"


def _ptrace_scope(path: str = "/proc/sys/kernel/yama/ptrace_scope") -> int | None:
    try:
        return int(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _in_container(root: Path = Path("/")) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(word in groups for word in ("docker", "kubepods", "containerd", "lxc"))
