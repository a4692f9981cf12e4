"""The processes of many trainings, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.reduction import DupFd
from types import SimpleNamespace
from typing import Any

from hotloop.base.children import python_command
from hotloop.experiments import pool

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "gymnasium.envs.classic_control.cartpole",
        "hotloop.algorithms.ppo",
        "hotloop.experiments.worker",
        "hotloop.runs.learning_curve",
        "hotloop.training.lanes",
        "hotloop.training.run",
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "torch._dynamo",  # which `vmap` imports, for lanes
    ]
)


def _work(descriptors: tuple[Any, Any, Any], environment: dict[str, str]) -> None:
    """Turn this process into `python -m hotloop.experiments.worker`."""
    from hotloop.experiments import worker

    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor.detach(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    worker.main()


class WarmWorker:
    """The part of `subprocess.Popen` that the pool uses."""

    def __init__(self, command: list[str], *, stderr: Any, env: dict[str, str], **_: Any) -> None:
        assert command == python_command("hotloop.experiments.worker")
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb")
        descriptors = tuple(DupFd(fd) for fd in (theirs_in, theirs_out, stderr.fileno()))
        self._process = _CONTEXT.Process(target=_work, args=(descriptors, env))
        self._process.start()
        os.close(theirs_in)
        os.close(theirs_out)
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code; negative: the signal that ended the process."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def use_warm_pool(monkeypatch: Any) -> None:
    """Fork the processes of a pool."""
    names = {"PIPE": subprocess.PIPE, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(pool, "subprocess", SimpleNamespace(Popen=WarmWorker, **names))
