"""Samples at one place of a thread, and corrections of what they show of waits and work."""

from __future__ import annotations

from typing import NamedTuple

from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import ProfiledProcess, Sample, Session, Stack
from hotloop.profiler.session.stages import CodeLine


class SampleRow(NamedTuple):
    """Samples of a thread at one place.

    Attributes:
        weight: nanoseconds of the program's duration per nanosecond of the samples.
    """

    process: ProfiledProcess
    sample: Sample
    stack: Stack
    stage: str
    leaf: CodeLine
    weight: float

    @property
    def ns(self) -> float:
        """Its part of the program's duration."""
        return self.weight * self.sample.elapsed_ns

    @property
    def is_blocked(self) -> bool:
        """Whether the thread is blocked for longer than it computes.

        After a wait it may be queued for a core, which is no work.
        """
        return self.sample.blocked_ns > max(0, self.sample.on_core_ns)

    @property
    def key(self) -> tuple[int, int, tuple[str, ...], int]:
        """Process, thread, open spans and stack, which identify a row."""
        return self.process.pid, self.sample.thread, self.sample.path, self.sample.stack


def without_work_in_waits(rows: list[SampleRow]) -> list[SampleRow]:
    """Return a thread's rows with the work of its blocking calls moved to where it computes.

    The main thread takes the samples. While it is in long operations of torch, another thread has
    the interpreter's lock, and is sampled where it releases the lock, such as where it sleeps.
    """
    blocking = {id(row) for row in rows if _blocked_ns(row) > 0.1 * row.sample.elapsed_ns}
    computing_ns = sum(_runnable_ns(row) for row in rows if id(row) not in blocking)
    moved_ns = sum(_runnable_ns(row) for row in rows if id(row) in blocking)
    if not computing_ns or not moved_ns:
        return rows
    factor = moved_ns / computing_ns
    moved: list[SampleRow] = []
    for row in rows:
        sample, share = row.sample, -1.0 if id(row) in blocking else factor
        sample = sample._replace(
            elapsed_ns=sample.elapsed_ns + round(share * _runnable_ns(row)),
            on_core_ns=round((1.0 + share) * sample.on_core_ns),
            queued_ns=round((1.0 + share) * sample.queued_ns),
        )
        moved.append(row._replace(sample=sample))
    return moved


def _blocked_ns(row: SampleRow) -> int:
    return sum(ns for wait, ns in row.sample.waits.items() if wait != "interpreter")


def _runnable_ns(row: SampleRow) -> int:
    return row.sample.on_core_ns + row.sample.queued_ns


def with_polls(
    rows: list[SampleRow], session: Session, *, restarts_processes: bool
) -> list[SampleRow]:
    """Return the main thread's rows, with its sleeps as waits if it only polls for others.

    A program may start its work in a thread or in processes, and sleep until they end, or wait for
    other programs of Python that it starts. A main thread that steps, acts or learns itself sleeps
    for another reason, such as a robot's pace. Programs that it starts repeatedly are a cost.
    """
    main = session.main
    polls = ["sleep"] if restarts_processes else ["sleep", "child"]
    in_loop = [row for row in rows if row.stage != "import"]
    polling_ns = sum(row.sample.waits.get(name, 0) for row in in_loop for name in polls)
    whole_ns = sum(row.sample.elapsed_ns for row in in_loop)
    has_work = any(row.stage in ("env", "act", "update", "replay") for row in in_loop)
    if has_work or not polling_ns or polling_ns < LIMITS.main_share * whole_ns:
        return rows
    work_ns = sum(
        sample.on_core_ns + sample.queued_ns
        for process in session.processes
        for sample in process.samples
        if (process.pid, sample.thread) != (main.pid, main.pid)
    )
    if work_ns < LIMITS.polled_share * polling_ns:
        return rows
    return [
        row._replace(stage="wait")
        if sum(row.sample.waits.get(name, 0) for name in polls) > 0.5 * row.sample.elapsed_ns
        else row
        for row in rows
    ]
