"""Processes of the command that start at once, and may be made to die at a chosen place.

Importing torch takes seconds, and there are hundreds of trials. So one process, the parent, imports
what the command needs; each trial is a child that it forks, which does from there on what a process
of its own would do. `python -m tests.faults.forks SOCKET` is the parent.
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
# In the environment of every process that a trial starts.
MARK = "HOTLOOP_FAULTS_MARK"
# What a child may not do without: a link to /dev/zero must not take the machine's memory.
MEMORY_BYTES = 12 << 30


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code; minus the signal's number, if one ended it; None: it took too long.
        out: its standard output.
        err: its standard error.
    """

    code: int | None
    out: str
    err: str

    @property
    def told(self) -> str:
        """Its code and the end of what it said, in one line."""
        code = "took too long" if self.code is None else f"exit code {self.code}"
        return f"{code}: {' | '.join(self.err.strip().splitlines()[-3:])[-400:]}"


class Child:
    """A trial's process.

    Attributes:
        pid: its number.
    """

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._answers = connection.makefile("r")
        self._connection = connection
        self._folder = folder
        self.pid = int(self._answers.readline())

    def wait(self, timeout_s: float = 90.0) -> Ended:
        """Wait for its end; it is killed after `timeout_s`."""
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
        return Ended(code, out, err)


class Forks:
    """The parent, as those who want trials see it.

    Args:
        folder: for its socket, and for what the trials print.
        environment: of the trials, beside the process's own.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._count = 0
        self._path = folder / "socket"
        command = [sys.executable, "-m", "tests.faults.forks", str(self._path)]
        self._parent = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE
        )
        until = time.monotonic() + 120.0
        while not self._path.exists():
            assert self._parent.poll() is None, "the parent of the trials died"
            assert time.monotonic() < until, "the parent of the trials does not begin"
            time.sleep(0.02)

    def start(self, target: str, *args: Any, **options: Any) -> Child:
        """Call a function in a child.

        Args:
            target: the function, `module:name`; what it returns is the exit code.
            args: its arguments, as JSON holds them.
            options: `cwd`, `env` (what is added to its environment), `die` (arguments of
                `die_at`), `is_stopped` (it waits for SIGCONT before it begins).
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
        """Start `hotloop` with these arguments; options as of `start`."""
        return self.start("tests.faults.forks:command", [str(arg) for arg in args], **options)

    def run(self, *args: Any, timeout_s: float = 90.0, **options: Any) -> Ended:
        """Run `hotloop` with these arguments to its end."""
        return self.command(*args, **options).wait(timeout_s)

    def close(self) -> None:
        """End the parent."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(10.0)


# --- in the parent and its children ---------------------------------------------------------------


def command(args: list[str]) -> int:
    """The command line, as `hotloop` calls it."""
    from hotloop.cli import main

    sys.argv = ["hotloop", *args]
    return main()


_CHANGES = {
    *("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link"),
    *("os.truncate", "os.chmod", "os.utime", "shutil.rmtree", "fcntl.lockf", "fcntl.flock"),
}


def die_at(number: int, roots: list[str], count_to: str | None = None) -> None:
    """Let this process kill itself before its `number`th operation on files beneath `roots`.

    Args:
        number: from 1; 0: never.
        roots: directories, absolute.
        count_to: a file that is told how many operations there were, one byte each.
    """
    count = 0
    counter = None if count_to is None else os.open(count_to, os.O_CREAT | os.O_WRONLY)

    def is_within(value: Any) -> bool:
        if isinstance(value, (bytes, os.PathLike)):
            value = os.fsdecode(value)
        return isinstance(value, str) and os.path.abspath(value).startswith(tuple(roots))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        # Removing a tree goes by descriptors of its folders, and tells no paths.
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
    """Become what the request asks for, and do it."""
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
    """Start one child, and tell its number and how it ended."""
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
    """Fork whoever asks, until nobody is there to ask."""
    import gc
    import select

    import gymnasium
    import gymnasium.envs.classic_control

    for name in ("ppo", "sac"):
        importlib.import_module(f"hotloop.algorithms.{name}")
    names = ("train", "resume", "eval", "runs", "plot", "export", "report", "compare", "workers")
    for name in names:
        importlib.import_module(f"hotloop.cli.{name}")
    for name in (
        "hotloop.runs.plots",
        "hotloop.runs.summary",
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that keep children
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
    # By its own name, so that children find this very module.
    importlib.import_module("tests.faults.forks")._serve(sys.argv[1])
