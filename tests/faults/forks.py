"""Processes of the `hotloop` command that start quickly and can die at a chosen operation.

Importing torch takes seconds, and there are hundreds of trials. So one process, the parent, imports
all modules of the command and forks a child for each trial. `python -m tests.faults.forks SOCKET`
runs the parent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Environment variable of every process that a trial starts.
MARK = "HOTLOOP_FAULTS_MARK"
# Memory limit of a child: reading a link to /dev/zero must not take the machine's memory.
MEMORY_BYTES = 12 << 30


@dataclass(frozen=True)
class ProcessResult:
    """Exit code and output of a process.

    Attributes:
        code: Exit code, minus the signal's number if a signal ended it, or None after a timeout.
        out: Standard output.
        err: Standard error.
    """

    code: int | None
    out: str
    err: str

    @property
    def summary(self) -> str:
        """The exit code and the end of standard error, in one line."""
        code = "took too long" if self.code is None else f"exit code {self.code}"
        return f"{code}: {' | '.join(self.err.strip().splitlines()[-3:])[-400:]}"


class Child:
    """A trial's process.

    Attributes:
        pid: Process ID.
    """

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._answers = connection.makefile("r")
        self._connection = connection
        self._folder = folder
        self.pid = int(self._answers.readline())

    def wait(self, timeout_s: float = 90.0) -> ProcessResult:
        """Wait for its end, and kill it after `timeout_s`."""
        self._connection.settimeout(timeout_s)
        code: int | None = None
        try:
            code = int(self._answers.readline())
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.2)
        self._answers.close()
        self._connection.close()
        out, err = ((self._folder / x).read_text(errors="replace") for x in ("out", "err"))
        return ProcessResult(code, out, err)


class Forks:
    """Starts the parent and requests trials from it.

    Args:
        folder: Directory of the socket and of the trials' output.
        environment: Additional environment variables of the trials.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._count = 0
        self._path = folder / "socket"
        command = [sys.executable, "-m", "tests.faults.forks", str(self._path)]
        self._parent = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE
        )
        deadline = time.monotonic() + 120.0
        while not self._path.exists():
            assert self._parent.poll() is None, "the parent of the trials died"
            assert time.monotonic() < deadline, "the parent of the trials does not start"
            time.sleep(0.02)

    def start(self, target: str, *args: Any, **options: Any) -> Child:
        """Call a function in a child.

        Args:
            target: Function `module:name` that returns the exit code.
            args: Arguments of the function, as JSON values.
            options: `cwd`, `env` (additional environment variables), `die` (arguments of `die_at`),
                `is_stopped` (wait for SIGCONT before the start).
        """
        self._count += 1
        folder = self._folder / f"{self._count:05}"
        folder.mkdir()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._path))
        request = {"target": target, "args": args, "folder": str(folder), **options}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Child(connection, folder)

    def command(self, *args: Any, **options: Any) -> Child:
        """Start `hotloop` with these arguments and the options of `start`."""
        return self.start("tests.faults.forks:command", [str(arg) for arg in args], **options)

    def run(self, *args: Any, timeout_s: float = 90.0, **options: Any) -> ProcessResult:
        """Run `hotloop` with these arguments and wait for its end."""
        return self.command(*args, **options).wait(timeout_s)

    def close(self) -> None:
        """End the parent."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(10.0)


# --- in the parent and its children ---------------------------------------------------------------


def command(args: list[str]) -> int:
    """Run the command line as `hotloop` does."""
    from hotloop.cli import main

    sys.argv = ["hotloop", *args]
    return main()


_CHANGES = {
    *("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link"),
    *("os.truncate", "os.chmod", "os.utime", "shutil.rmtree", "fcntl.lockf", "fcntl.flock"),
}


def die_at(number: int, roots: list[str], count_to: str | None = None) -> None:
    """Let this process kill itself before its `number`th operation on files below `roots`.

    Args:
        number: From 1, or 0 for never.
        roots: Absolute directories.
        count_to: File that gets one byte per operation.
    """
    count = 0
    counter = None if count_to is None else os.open(count_to, os.O_CREAT | os.O_WRONLY)

    def is_within(value: Any) -> bool:
        if isinstance(value, (bytes, os.PathLike)):
            value = os.fsdecode(value)
        return isinstance(value, str) and os.path.abspath(value).startswith(tuple(roots))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        # Removing a tree uses descriptors of its directories, without paths.
        by_descriptor = event in ("os.remove", "os.rmdir") and args[1] != -1
        if event not in _CHANGES or not (by_descriptor or any(map(is_within, args[:2]))):
            return
        count += 1
        if counter is not None:
            os.write(counter, b".")
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _child(request: dict[str, Any]) -> int:
    """Set up this child for a request, and run it."""
    folder = request["folder"]
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setsid()
    os.environ.update(request.get("env") or {})
    os.chdir(request.get("cwd") or ROOT)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request.get("is_stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if request.get("die"):
        die_at(*request["die"])
    module, name = request["target"].split(":")
    return getattr(importlib.import_module(module), name)(*request["args"])


def _keep(connection: socket.socket) -> None:
    """Start one child, and send its process ID and exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.makefile("r").readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        sys.exit(_child(request))
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _serve(path: str) -> None:
    """Fork a child for each connection, until standard input closes."""
    import gc
    import select

    import gymnasium
    import gymnasium.envs.classic_control

    for name in ("ppo", "sac"):
        importlib.import_module(f"hotloop.algorithms.{name}")
    names = ("train", "resume", "eval", "runs", "plot", "export", "report", "compare")
    for name in names:
        importlib.import_module(f"hotloop.cli.{name}")
    for name in (
        "hotloop.runs.learning_curve",
        "hotloop.runs.summary",
        "hotloop.reports.workers",
        "hotloop.profiler.session.reading",
        "tyro",
    ):
        importlib.import_module(name)
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        gymnasium.make(env_id).close()
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".begins")
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the keepers
    os.rename(path + ".begins", path)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(connection)
        connection.close()


if __name__ == "__main__":
    # Imported by name, so that children find this very module.
    importlib.import_module("tests.faults.forks")._serve(sys.argv[1])
