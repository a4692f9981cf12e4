"""A pool of processes that train one run after another, and are replaced if they die."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.base.children import python_command, search_path
from hotloop.base.crowding import JOBS
from hotloop.experiments.worker import pack

_END_S = 5.0


class PoolProcess:
    """A process of the pool.

    Args:
        log: file that receives its output.
        jobs: number of processes in the pool.

    Attributes:
        work: the owner's object for the current training, None if the process is idle.
        trained_lanes: the numbers of lanes that it has trained before, and so has compiled.
    """

    def __init__(self, log: Path, jobs: int) -> None:
        self.work: Any = None
        self.trained_lanes: set[int] = set()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                python_command("hotloop.experiments.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # W&B shows the runs of a sweep as one group.
                env={
                    "WANDB_RUN_GROUP": log.parent.name,
                    **os.environ,
                    "PYTHONPATH": search_path(),
                    JOBS: str(jobs),
                },
                start_new_session=True,  # a terminal sends Ctrl-C only to the sweep
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        os.set_blocking(self.out.fileno(), False)
        self._partial_line = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def train(
        self, work: Any, algorithm: str, configs: Sequence[Any], metric: str, runs_per_update: int
    ) -> None:
        """Start a training, or several as lanes of one.

        Args:
            work: any object that identifies the training, for `self.work`.
            algorithm: name of the algorithm on the command line.
            configs: configurations of the lanes.
            metric: a key of `worker.METRICS`.
            runs_per_update: number of runs that share a compiled update.
        """
        self.work = work
        texts = [pack(config) for config in configs]
        self._send(
            {"algorithm": algorithm, "configs": texts, "metric": metric, "runs": runs_per_update}
        )

    def stop(self) -> None:
        """Stop the current training at its next report."""
        self._send({"stop": True})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a dead process is detected in `read`
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages since the last call, None if the process has ended."""
        data, has_ended = self._partial_line, False
        while True:
            try:
                chunk = os.read(self.out.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                has_ended = True
                break
            data += chunk
        *lines, self._partial_line = data.split(b"\n")
        messages = [json.loads(line) for line in lines]
        return None if has_ended and not messages else messages

    def exit_code(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self._process.wait()

    def end(self, *, gently: bool = False) -> None:
        """End the process. If `gently`, first wait for it to exit, since its input is closed."""
        with contextlib.suppress(OSError):
            self._in.close()
        if gently:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self.out.close()


class Pool:
    """A pool of processes.

    Args:
        jobs: number of processes.
        log: file that receives their output.
    """

    def __init__(self, jobs: int, log: Path) -> None:
        self._jobs, self._log = jobs, log
        self.processes: list[PoolProcess] = []
        self._selector = selectors.DefaultSelector()

    def idle(self) -> PoolProcess | None:
        """Return an idle process, None if all are busy."""
        for process in self.processes:
            if process.work is None:
                return process
        if len(self.processes) < self._jobs:
            return self.start()
        return None

    def start(self) -> PoolProcess:
        """Start another process, even beyond the number of jobs."""
        process = PoolProcess(self._log, self._jobs)
        self.processes.append(process)
        self._selector.register(process.out, selectors.EVENT_READ, process)
        return process

    @property
    def is_busy(self) -> bool:
        """Whether a process is training."""
        return any(process.work is not None for process in self.processes)

    def wait(self, timeout_s: float) -> list[tuple[PoolProcess, list[dict[str, Any]] | None]]:
        """Return processes with new messages, or with None if the process ended and was removed."""
        received: list[tuple[PoolProcess, list[dict[str, Any]] | None]] = []
        for key, _ in self._selector.select(timeout_s):
            process: PoolProcess = key.data
            messages = process.read()
            if messages is None:
                self._selector.unregister(process.out)
                self.processes.remove(process)
            received.append((process, messages))
        return received

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            self._selector.unregister(process.out)
            process.end(gently=process.work is None)
        self.processes.clear()
        self._selector.close()
