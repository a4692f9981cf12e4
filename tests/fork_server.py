"""A server that forks workers: see `tests.warm_start`."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from runpy import run_module
from typing import NoReturn

MAX_REQUEST = 262_144
_PRELOAD = (
    "gymnasium.envs.classic_control.cartpole",
    "gymnasium.envs.classic_control.pendulum",
    "hotloop.envs",
    "hotloop.policies",
    "uuid",
)
_PROGRAMS = ("hotloop.rollouts.inference.server", "hotloop.rollouts.processes.worker")


def _serve(descriptor: int) -> None:
    """Fork a worker for every request until the test's process ends."""
    for name in (*_PRELOAD, *_PROGRAMS):
        importlib.import_module(name)
    for name in _PROGRAMS:  # they run as `__main__`
        del sys.modules[name]
    with socket.socket(fileno=descriptor) as connection:
        while True:
            packet, received, _, _ = socket.recv_fds(connection, MAX_REQUEST, 64)
            if not packet:
                return
            request = json.loads(packet)
            ends, starts = os.pipe()
            middle = os.fork()
            if not middle:
                worker = os.fork()
                if worker:
                    os.write(starts, str(worker).encode())
                    os._exit(0)
                _become_worker(request, received, ends, starts, connection)
            os.close(starts)
            pid = os.read(ends, 64)
            os.waitpid(middle, 0)
            os.close(ends)
            for fd in received:
                os.close(fd)
            connection.send(pid)


def _become_worker(request, received, ends, starts, connection) -> NoReturn:
    """Set this process up like a new interpreter, and run the worker's program."""
    code = 1
    try:
        os.setsid()
        os.close(ends)
        os.close(starts)
        connection.close()
        _place_descriptors(received, request["fds"])
        os.chdir(request["directory"])
        _replace_environment(request["environment"])
        paths = request["environment"]["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
        sys.argv[1:] = request["arguments"]
        while os.getppid() != request["parent"]:
            os.sched_yield()
        run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _place_descriptors(received: list[int], numbers: list[int]) -> None:
    """Give every received descriptor the number that it has in the test's process."""
    lowest = 1 + max(*received, *numbers)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, lowest) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _replace_environment(environment: dict[str, str]) -> None:
    """Replace the environment variables, also in `/proc/self/environ`."""
    os.environ.clear()
    os.environ.update(environment)  # libc copies them: nothing points to the old block any more
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    block = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    assert len(block) < end - start, "the environment variables are larger than the padding"
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
