"""py-spy beside the profiler's own sampler: it looks from outside, at a program that need not help.

    spy = attach(pid, "profiles/one/py-spy.txt")
    ...
    problem = spy.stop()  # None, or why there are no stacks

Nothing that goes wrong with it reaches the program: it is told in one sentence.
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

# py-spy ends by itself when the program and its children have; then it still has to write.
_GRACE_S = 5.0


class PySpy:
    """py-spy at work. Made by `attach`.

    Args:
        path: where its stacks go.
        process: py-spy's; None: it could not be started.
        errors: what it prints of errors.
        problem: why it could not be started.
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

    def stop(self, grace_s: float = _GRACE_S) -> str | None:
        """Have it write what it has, once the program has ended. Harmless when repeated.

        Args:
            grace_s: it is asked to end after so long, and made to after twice that.

        Returns:
            None, or why there are no stacks, in one sentence.
        """
        process, self._process = self._process, None
        if process is None:
            return self._problem
        code = _wait(process, grace_s)
        if code is None:
            self._problem = "py-spy did not end in time: its stacks are missing"
        elif not _has_content(self.path):
            self._problem = _reason(self._read_errors(), code)
        return self._problem

    def _read_errors(self) -> str:
        if self._errors is None:
            return ""
        with suppress(OSError), self._errors as file:
            file.seek(0)
            return file.read(65536).decode("utf-8", "replace")
        return ""


def attach(pid: int, path: str | os.PathLike[str], *, rate: int = 100) -> PySpy:
    """Have py-spy sample a process and its children, where it is installed and may.

    It reads the memory of processes that go on meanwhile (`--nonblocking`), so that profiling does
    not change what it profiles.

    Args:
        pid: of the program.
        path: where the stacks go; `flame.read_folded` reads them.
        rate: samples a second.
    """
    path = Path(path)
    program = _find()
    if program is None:
        return PySpy(
            path, None, None, "py-spy is not installed: pip install 'hotloop[profile]' brings it"
        )
    if not _may_trace(program, pid):
        return PySpy(path, None, None, f"py-spy may not trace the program: {_obstacle()}")
    command = [
        program,
        "record",
        *("--pid", str(pid)),
        "--subprocesses",
        *("--format", "raw"),
        *("--rate", str(rate)),
        "--nonblocking",
        "--full-filenames",
        "--function",
        *("--output", str(path)),
    ]
    try:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (read when it has ended)
        # In a session of its own: Ctrl-C is the program's, which may go on after it.
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


def _find() -> str | None:
    """The one of this environment, whether it is activated or not; else that of the path."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _may_trace(program: str, pid: int) -> bool:
    """Whether it is allowed to: where it looks at subprocesses too, it does not say."""
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid), "--nonblocking"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GRACE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # what else is wrong will be told
    return not _is_denied(done.stderr.decode("utf-8", "replace"))


def _is_denied(errors: str) -> bool:
    return any(words in errors.lower() for words in ("permission denied", "not permitted"))


def _wait(process: subprocess.Popen[bytes], grace_s: float) -> int | None:
    """Its exit code; None: it had to be killed."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(grace_s)
    process.send_signal(signal.SIGINT)  # writes what it has
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


def _reason(errors: str, code: int) -> str:
    """Why there are no stacks."""
    if _is_denied(errors):
        return f"py-spy may not trace the program: {_obstacle()}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    nothing = ("no python processes", "python version", "no such process")
    if any(words in errors.lower() for words in nothing):
        return "py-spy found no Python to sample: the program ended too soon, or has none"
    if code == 0 and not lines:
        return "py-spy took no samples: the program ended too soon, or did not use a core"
    # Below the error stands the stack of its own calls.
    told = [line for line in lines if line.startswith("Error:")] or lines[-1:]
    why = told[0].removeprefix("Error:").strip() if told else "it does not say why"
    return f"py-spy failed with exit code {code}: {why}"


def _obstacle() -> str:
    """What forbids tracing, and who can allow it."""
    if sys.platform == "darwin":
        return "macOS lets root alone do so, run with sudo"
    scope = _ptrace_scope()
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which forbids it until the next boot"
    if _in_container():
        return "a container needs the capability for it, start it with --cap-add SYS_PTRACE"
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
