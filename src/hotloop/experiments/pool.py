"""A pool of processes that train one run after another, or several as lanes of one update.

A process that dies is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.children import python_command, search_path
from hotloop.base.crowding import JOBS
from hotloop.errors import ConfigError
from hotloop.experiments.worker import pack

if TYPE_CHECKING:
    from hotloop.experiments.runner import Outcome, Runner, RunSpec

_END_S, _POLL_S = 5.0, 0.25
# With `--lanes auto`, a process uses either one lane or this number, which was the fastest one for
# two processes on two cores.
AUTO_LANES = 4
# Number of batches of runs to measure with each number of lanes. A process's first batch is not
# measured, since it imports and may compile.
_MEASURED_BATCHES = 2


class PoolProcess:
    """A process of the pool.

    Attributes:
        work: the caller's object for the current training, None if the process is idle.
        trained_lanes: the numbers of lanes whose joint update it has already compiled.
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

    def train(self, work: Any, configs: Sequence[Any], **request: Any) -> None:
        """Start a training, or several as lanes of one.

        Args:
            work: any object that identifies the training, for `self.work`.
            configs: configurations of the lanes.
            request: other fields of the request, see `worker`.
        """
        self.work = work
        self._send({"configs": [pack(config) for config in configs], **request})

    def interrupt(self) -> None:
        """Make the current training write its last checkpoint, and end the process."""
        self._process.send_signal(signal.SIGINT)

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


class PoolExecutor:
    """An executor that trains in a pool of processes.

    Args:
        jobs: number of processes.
        lanes: number of runs that a process trains in one update. None: one or `AUTO_LANES`,
            whichever is measured to be faster.
    """

    def __init__(self, jobs: int, lanes: int | None) -> None:
        self._jobs, self._lanes = jobs, lanes
        # The next run, if it can't share an update with the batch before it.
        self._deferred: RunSpec | None = None
        self._stop_reasons: dict[tuple[int, int, str], str] = {}  # by key of the run
        # Number of lanes → runs per second of the measured batches.
        self._rates: dict[int, list[float]] = {1: [], AUTO_LANES: []}
        # Process id → start time and number of lanes of its current batch.
        self._started: dict[int, tuple[float, int]] = {}

    def run(self, runner: Runner, specs: Iterator[RunSpec]) -> None:
        """Train the runs. See `Executor`."""
        self._runner, has_more = runner, True
        self._pool = Pool(self._jobs, runner.directory / "output.log")
        try:
            while has_more or self._pool.is_busy:
                while has_more and not runner.is_out_of_time():
                    process = self._pool.idle()
                    if process is None:
                        break
                    has_more = self._start(process, specs)
                has_more = has_more and not runner.is_out_of_time()
                if self._pool.is_busy:
                    for process, messages in self._pool.wait(_POLL_S):
                        self._handle_messages(process, messages)
                runner.show()
        except KeyboardInterrupt:
            if runner.results.is_group:  # the runs of a group can be resumed
                self._interrupt_all()
            raise
        finally:
            self._pool.end()

    def _start(self, process: PoolProcess, specs: Iterator[RunSpec]) -> bool:
        """Start the next run, or several as lanes. Return False if there are none."""
        chosen: list[tuple[RunSpec, Any]] = []
        num_lanes = self._next_num_lanes()
        while len(chosen) < num_lanes:
            spec, self._deferred = self._deferred or next(specs, None), None
            if spec is None:
                break
            config = self._runner.make_config(spec)
            if config is None:
                continue
            if chosen and not self._can_share_update([*(x for _, x in chosen), config]):
                self._deferred = spec
                break
            claimed_config = self._runner.claim(spec, config)
            if claimed_config is not None:
                chosen.append((spec, claimed_config))
        if not chosen:
            return False
        self._runner.load()
        self._started[process.pid] = time.monotonic(), len(chosen)
        self._send(process, [spec for spec, _ in chosen], [config for _, config in chosen])
        return True

    def _send(self, process: PoolProcess, specs: Sequence[RunSpec], configs: Sequence[Any]) -> None:
        plan = self._runner.plan
        process.train(
            specs,
            configs,
            algorithm=plan.algorithm,
            metric=plan.metric,
            runs=plan.runs_per_update,
            lines=self._runner.on_line is not None,
            is_group=self._runner.results.is_group,
        )

    def _next_num_lanes(self) -> int:
        """Return the number of runs of the next batch: the fastest, once that is measured."""
        if self._lanes is not None:
            return self._lanes
        if self._runner.pruner.name in ("median", "asha"):
            return 1
        for lanes, rates in self._rates.items():
            if len(rates) < _MEASURED_BATCHES:
                return lanes
        return max(self._rates, key=lambda lanes: statistics.median(self._rates[lanes]))

    def _measure(self, process: PoolProcess, is_complete: bool) -> None:
        """Record the rate of a batch, unless its process had to compile the update for it."""
        start_s, lanes = self._started.pop(process.pid, (0.0, 0))
        if is_complete and lanes in self._rates and lanes in process.trained_lanes:
            self._rates[lanes].append(lanes / (time.monotonic() - start_s))
        process.trained_lanes.add(lanes)

    def _can_share_update(self, configs: Sequence[Any]) -> bool:
        from hotloop.algorithms import find
        from hotloop.training.lanes import check_lanes

        try:
            check_lanes(find(self._runner.plan.algorithm), configs)
        except ConfigError:
            return False
        return True

    def _handle_messages(self, process: PoolProcess, messages: list[dict[str, Any]] | None) -> None:
        """Handle a process's reports, lines and results. None: the process has ended."""
        specs: list[RunSpec] = process.work or []
        if messages is None:
            self._retry_lost(process, specs)
            return
        for message in messages:
            if "report" in message:
                lane, timesteps, score = message["report"]
                self._add_report(process, specs, lane, timesteps, score)
            elif "line" in message:
                if self._runner.on_line is not None:
                    self._runner.on_line(self._runner.label(specs), message["line"])
            else:
                outcomes: list[tuple[RunSpec, Outcome]] = []
                for spec, (state, score, reason, seconds) in zip(
                    specs, message["done"], strict=True
                ):
                    reason = reason or self._stop_reasons.pop(spec.key, "")
                    outcomes.append((spec, (state, score, reason, seconds)))
                self._runner.finish(outcomes)
                self._measure(process, all(outcome[0] == "done" for outcome in message["done"]))
                process.work = None

    def _add_report(
        self, process: PoolProcess, specs: Sequence[RunSpec], lane: int, steps: int, score: float
    ) -> None:
        spec = specs[lane]
        reason = self._runner.add_report(spec, steps, score)
        if reason and len(specs) == 1 and spec.key not in self._stop_reasons:
            self._stop_reasons[spec.key] = reason
            process.stop()

    def _retry_lost(self, process: PoolProcess, specs: Sequence[RunSpec]) -> None:
        """Retry the runs of a dead process up to `max_tries` times, then store them as failed.

        Lanes are retried together, which gives the same results, and at last alone, since one of
        them may be the cause.
        """
        code, runner = process.exit_code(), self._runner
        cause = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        hint = "; out of memory?" if code == -signal.SIGKILL else ""
        outcome: Outcome = ("failed", None, f"its process ended {cause}{hint}", None)
        tries = [runner.results.tries(*spec.primary_key(runner.steps)) for spec in specs]
        if max(tries, default=0) < runner.results.max_tries:
            batches = [specs] if specs else []
        elif len(specs) > 1 and not runner.results.is_group:
            batches = [[spec] for spec in specs]
        else:
            runner.finish([(spec, outcome) for spec in specs])
            return
        for batch in batches:
            new_process = self._pool.idle() or self._pool.start()
            configs = [runner.claim(spec, runner.make_config(spec)) for spec in batch]
            claimed = [x for x in zip(batch, configs, strict=True) if x[1] is not None]
            if claimed:
                self._send(new_process, [spec for spec, _ in claimed], [x for _, x in claimed])

    def _interrupt_all(self) -> None:
        """Make all trainings write their last checkpoint, and wait for it."""
        for process in self._pool.processes:
            process.interrupt()
        while self._pool.processes:
            for process, messages in self._pool.wait(_POLL_S):
                if messages is None:
                    process.exit_code()
                else:  # a training may have ended just before
                    self._handle_messages(process, messages)
