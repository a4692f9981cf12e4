"""Start workers by forking a process that has imported everything that they import.

A worker is still a process of its own: it is a child of the test's process, leads its own session,
has its own environment variables (in `/proc/<pid>/environ`, too) and runs the same program. Only
the interpreter's start and the imports, which take most of the time, happen once per session.
Tests of the start itself use the fixture `cold_start`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hotloop.rollouts.processes import process
from tests.fork_server import MAX_REQUEST

_PR_SET_CHILD_SUBREAPER = 36
# A forked process writes its environment variables over this one.
_PADDING = "WARM_START_PADDING"


class WarmProcess:
    """A forked worker: the part of `subprocess.Popen` that `WorkerProcess` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; negative: the signal that ended the process."""
        if self.returncode is None:
            if timeout is not None:
                fd = os.pidfd_open(self.pid)
                try:
                    if not select.select([fd], [], [], timeout)[0]:
                        raise subprocess.TimeoutExpired("a worker", timeout)
                finally:
                    os.close(fd)
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class WarmStart:
    """A client of the fork server, with the signature of `subprocess.Popen`.

    Attributes:
        is_enabled: Whether workers are forked. Otherwise they start as they do for users.
    """

    def __init__(self) -> None:
        self.is_enabled = True
        self._environment = {
            **os.environ,
            **dict.fromkeys(process._THREADS, "1"),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            _PADDING: "x" * 65_536,
        }
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __call__(self, program, *, env, pass_fds, **options):
        if not self.is_enabled:
            return subprocess.Popen(program, env=env, pass_fds=pass_fds, **options)
        self.start_server()
        fds = [1, 2, *pass_fds]
        request = {
            "module": program[3],
            "arguments": program[4:],
            "environment": dict(env),
            "directory": os.getcwd(),
            "fds": fds,
            "parent": os.getpid(),
        }
        # The worker's parent ends at once. The kernel then makes this process its parent.
        _set_subreaper(True)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            pid = int(self._socket.recv(64))
        finally:
            _set_subreaper(False)
        return WarmProcess(pid)

    def start_server(self) -> None:
        """Start the fork server, unless it runs already."""
        if self._socket is not None:
            return
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST)
        with server_end:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(server_end.fileno())],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=[server_end.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End the fork server."""
        if self._socket is not None and self._server is not None:
            self._socket.close()
            self._server.wait()


def _set_subreaper(is_on: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0):
        raise OSError("prctl: this process can't become a subreaper")


@pytest.fixture(scope="session")
def warm_start() -> Iterator[WarmStart]:
    """Start workers by the fork server, which starts with the first one, until the session ends."""
    start = WarmStart()
    with pytest.MonkeyPatch.context() as patch:
        names = {"Popen": start, "DEVNULL": subprocess.DEVNULL}
        patch.setattr(
            process,
            "subprocess",
            SimpleNamespace(**names, TimeoutExpired=subprocess.TimeoutExpired),
        )
        yield start
    start.close()


@pytest.fixture
def cold_start(warm_start: WarmStart) -> Iterator[None]:
    """Start workers as for users, with a new interpreter."""
    warm_start.is_enabled = False
    yield
    warm_start.is_enabled = True
