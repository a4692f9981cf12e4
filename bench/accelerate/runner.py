"""Run jobs in their own processes until a deadline, with the standard library alone.

A job that crashes, hangs or breaks the GPU's context must not affect others. So each job has its
own process group and limit. At the limit every process of the group prints its Python stacks
(SIGABRT, which `PYTHONFAULTHANDLER` catches) and is killed. A line of JSON is appended to
`results.jsonl` as soon as a job ends, so that an interrupted run keeps its results.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

FIGURES = "figures: "
"""Prefix of the line with a job's figures as JSON."""

_POLL_S = 0.05
# A process that has loaded torch prints its stacks in a fraction of this.
_STACKS_S = 2.0
# Reserved for ending the last jobs and for the table.
_RESERVE_S = 5.0
_LOG_LINES = 200
_ERROR_LINES = 4


class Job(NamedTuple):
    """One process of a stage.

    Attributes:
        name: label in the table.
        command: arguments of the process.
        limit_s: seconds until the process is killed.
        alone: whether the job must run without other jobs because it measures time.
        least_s: the job is skipped if fewer seconds remain until the deadline.
        place: keys of the figures in the stored result, such as `("seeds", "16")`.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    alone: bool = False
    least_s: float = 5.0
    place: tuple[str, ...] = ()


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    started: float
    limit_s: float


class Runner:
    """Runs the jobs of a stage in order.

    Args:
        out: folder for `results.jsonl` and `logs.txt`.
        deadline: time by which all jobs must have ended, on the clock of `time.monotonic`.
        side_by_side: number of concurrent jobs.
        shared_entries: entries that every line repeats, such as the GPU's name.
        environment: additional environment variables of the jobs.
        on_line: callback for each line.
    """

    def __init__(
        self,
        out: Path,
        deadline: float,
        *,
        side_by_side: int = 1,
        shared_entries: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self._out, self._deadline, self._side_by_side = out, deadline, side_by_side
        self._shared_entries, self._on_line = dict(shared_entries or {}), on_line
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self._running: list[_Running] = []
        self._aborted_at: dict[int, float] = {}
        self.lines: list[dict[str, Any]] = []

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs; return when all have ended, at the latest at the deadline.

        A termination signal ends the running jobs and skips the rest.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        pending = list(jobs)
        with _terminable():
            try:
                while pending or self._running:
                    while pending and self._may_start(pending[0]):
                        self._start(pending.pop(0))
                    self._reap()
                    time.sleep(_POLL_S)
            finally:
                for entry in list(self._running):
                    _kill(entry.process)
                    self._end(entry, "failed", "the stage was terminated")
                for job in pending:
                    self._append(job, "skipped", 0.0, {}, "the stage was terminated")

    def _remaining_s(self) -> float:
        return self._deadline - _RESERVE_S - time.monotonic()

    def _may_start(self, job: Job) -> bool:
        """Return whether a job may start or be skipped now."""
        if self._remaining_s() < job.least_s:
            return True
        if job.alone or any(entry.job.alone for entry in self._running):
            return not self._running
        return len(self._running) < self._side_by_side

    def _start(self, job: Job) -> None:
        left_s = self._remaining_s()
        if left_s < job.least_s:
            self._append(job, "skipped", 0.0, {}, f"{max(left_s, 0):.0f} s remained")
            return
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the job ends)
        try:
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=_own_group,
            )
        except OSError as error:
            log.close()
            self._append(job, "failed", 0.0, {}, str(error))
            return
        limit_s = min(job.limit_s, left_s)
        self._running.append(_Running(job, process, log, time.monotonic(), limit_s))

    def _reap(self) -> None:
        now = time.monotonic()
        for entry in list(self._running):
            pid, code = entry.process.pid, entry.process.poll()
            aborted_at = self._aborted_at.get(pid)
            if code is None and aborted_at is None:
                if now - entry.started >= entry.limit_s:
                    self._aborted_at[pid] = now
                    _signal(entry.process, signal.SIGABRT)
            elif code is None and aborted_at is not None and now - aborted_at < _STACKS_S:
                continue
            else:
                _kill(entry.process)  # with the remaining processes of its group
                if aborted_at is not None:
                    self._end(entry, "timeout", f"not finished after {entry.limit_s:.0f} s")
                elif code:
                    reason = f"ended by {signal.Signals(-code).name}" if code < 0 else ""
                    self._end(entry, "failed", reason)
                else:
                    self._end(entry, "ok", "")

    def _end(self, entry: _Running, status: str, reason: str) -> None:
        self._running.remove(entry)
        entry.log.seek(0)
        printed = entry.log.read().decode(errors="replace").splitlines()
        entry.log.close()
        figures: dict[str, Any] = {}
        for line in reversed(printed):
            if line.startswith(FIGURES):
                figures = json.loads(line.removeprefix(FIGURES))
                break
        if status == "ok" and not figures:
            status, reason = "failed", "it printed no figures"
        seconds = time.monotonic() - entry.started
        if status != "ok":
            with (self._out / "logs.txt").open("a", encoding="utf-8") as file:
                file.write(f"==== {entry.job.name}: {status} {reason}\n")
                file.writelines(f"{line}\n" for line in printed[-_LOG_LINES:])
            reason = "\n".join(filter(None, [*_last_lines(printed), reason]))
        elif "missing" in figures:
            status, reason = "skipped", str(figures["missing"])
        self._append(entry.job, status, seconds, figures, reason)

    def _append(
        self, job: Job, status: str, seconds: float, figures: dict[str, Any], reason: str
    ) -> None:
        line = {"name": job.name, "status": status, "seconds": round(seconds, 1)}
        line |= {
            "figures": figures,
            "error": reason,
            "place": list(job.place),
            **self._shared_entries,
        }
        self.lines.append(line)
        with (self._out / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._on_line(line)


def read_lines(out: Path) -> list[dict[str, Any]]:
    """Return the lines of a folder's `results.jsonl` without an incomplete last line."""
    lines = []
    for text in (out / "results.jsonl").read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines


def _last_lines(printed: Sequence[str]) -> list[str]:
    """Return the top of a job's stack if it printed one, else its last lines."""
    for number, line in enumerate(printed):
        if line.startswith("Current thread"):
            return list(printed[number + 1 : number + 1 + _ERROR_LINES])
    lines = [line for line in printed if line.strip() and not line.startswith(FIGURES)]
    return lines[-_ERROR_LINES:]


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise `SystemExit`, so that the jobs end before this process."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _own_group() -> None:
    """Make a job's process the leader of a process group in the terminal's session."""
    os.setpgrp()
    # Writing a core file of a process with a CUDA context takes minutes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a job's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
    # A process that waits in the GPU's driver may survive SIGKILL; do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
