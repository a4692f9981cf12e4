"""A pool of processes that take trainings: started once, replaced where one dies."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.sweeps.worker import packed
from hotloop.system.crowding import JOBS

_END_S = 5.0


class Process:
    """One of the pool.

    Args:
        log: what it prints goes there.
        jobs: how many there are.

    Attributes:
        work: what it is at, as its owner calls it; None: it is idle.
        has_made: as how many lanes it has trained before, and has them compiled.
    """

    def __init__(self, log: Path, jobs: int) -> None:
        self.work: Any = None
        self.has_made: set[int] = set()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hotloop.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # W&B shows the runs of a sweep as one group.
                env={"WANDB_RUN_GROUP": log.parent.name, **os.environ, JOBS: str(jobs)},
                start_new_session=True,  # a terminal's Ctrl-C reaches the sweep alone
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        os.set_blocking(self.out.fileno(), False)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def train(
        self, work: Any, algorithm: str, configs: Sequence[Any], metric: str, runs: int
    ) -> None:
        """Hand it a training, or lanes of one.

        Args:
            work: as its owner calls it.
            algorithm: by its name on the command line.
            configs: of each lane.
            metric: see `worker.METRICS`.
            runs: that share a compiled update.
        """
        self.work = work
        texts = [packed(config) for config in configs]
        self._tell({"algorithm": algorithm, "configs": texts, "metric": metric, "runs": runs})

    def stop(self) -> None:
        """Have it end what it is at, at the next report."""
        self._tell({"stop": True})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is dead: noticed by what it does not say
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return what it has said since the last time; None: it has ended."""
        found, has_ended = self._rest, False
        while True:
            try:
                some = os.read(self.out.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not some:
                has_ended = True
                break
            found += some
        *lines, self._rest = found.split(b"\n")
        messages = [json.loads(line) for line in lines]
        return None if has_ended and not messages else messages

    def exit_code(self) -> int:
        """Return it, once it has ended."""
        return self._process.wait()

    def end(self, *, gently: bool = False) -> None:
        """End it: when it has nothing to read it ends itself."""
        with contextlib.suppress(OSError):
            self._in.close()
        if gently:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self.out.close()


class Pool:
    """So many processes.

    Args:
        jobs: how many.
        log: what they print goes there.
    """

    def __init__(self, jobs: int, log: Path) -> None:
        self._jobs, self._log = jobs, log
        self.processes: list[Process] = []
        self._selector = selectors.DefaultSelector()

    def idle(self) -> Process | None:
        """Return one that has nothing to do; None: all are at work."""
        for process in self.processes:
            if process.work is None:
                return process
        if len(self.processes) < self._jobs:
            return self.start()
        return None

    def start(self) -> Process:
        """Start another one, however many there are."""
        process = Process(self._log, self._jobs)
        self.processes.append(process)
        self._selector.register(process.out, selectors.EVENT_READ, process)
        return process

    @property
    def is_at_work(self) -> bool:
        """Whether one of them is."""
        return any(process.work is not None for process in self.processes)

    def wait(self, timeout_s: float) -> list[tuple[Process, list[dict[str, Any]] | None]]:
        """Return who has said something, and what; None: it has ended, and has left the pool."""
        found: list[tuple[Process, list[dict[str, Any]] | None]] = []
        for key, _ in self._selector.select(timeout_s):
            process: Process = key.data
            messages = process.read()
            if messages is None:
                self._selector.unregister(process.out)
                self.processes.remove(process)
            found.append((process, messages))
        return found

    def end(self) -> None:
        """End all of them."""
        for process in self.processes:
            self._selector.unregister(process.out)
            process.end(gently=process.work is None)
        self.processes.clear()
        self._selector.close()
