"""Rule on a pipeline of processes in which one works all the time and the others wait for it."""

from __future__ import annotations

from itertools import islice

from hotloop.profiler.diagnose import causes
from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import costs_of
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    describe_lines,
    describe_place,
    is_waiting,
    library_frames,
    time_by_line,
)
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import ProfiledProcess, is_library
from hotloop.profiler.session.sums import ranked, sums


def starved_stage(evidence: Evidence) -> Explanation | None:
    """Detect three or more processes of which exactly one works all the time and the others wait.

    The processes of a vector environment wait by design and do not count, nor does a learner that
    only learns.
    """
    session, whole = evidence.session, evidence.duration_ns
    if evidence.span_totals(evidence.main, "vector_step")[0]:
        return None
    busy = {
        process.pid: evidence.busy_ns(process)
        for process in session.processes
        if sum(row.sample.count for row in evidence.rows_of(process)) > 100
    }
    # A process's work before its first wait is part of its start-up.
    starting = {
        pid: sum(
            row.sample.elapsed_ns
            for row in evidence.rows_of(process)
            if row.stage == "import" and not is_waiting(row)
        )
        for process in session.processes
        if (pid := process.pid) in busy
    }
    if len(busy) < 3:
        return None
    lived = {
        process.pid: max(1, process.duration_ns - starting.get(process.pid, 0))
        for process in session.processes
    }
    shares = {pid: max(0, ns - starting[pid]) / lived[pid] for pid, ns in busy.items()}
    first, second, *_ = sorted(shares, key=lambda pid: -shares[pid])
    if shares[first] < LIMITS.busy_share or shares[second] > LIMITS.idle_share:
        return None
    busiest = next(process for process in session.processes if process.pid == first)
    saved = (shares[first] - shares[second]) * lived[first]
    # The other processes still need cores, and inherent work remains.
    cpu = evidence.cpu_ns - busiest.cpu_ns
    rows = [row for row in evidence.rows_of(busiest) if not is_waiting(row)]
    at_work = sum(row.ns for row in rows)
    # Compilations at its start delay no other process later, and repeated ones are named as such.
    costs = [cost for cost in costs_of(rows) if cost.cause is not causes.COMPILATION]
    costs = [cost for cost in costs if _is_removable(cost, cost.ns / at_work)]
    removable = sum(cost.ns for cost in costs)
    saved = min(saved, removable, whole - cpu / max(evidence.main.cores, 1))
    if saved < LIMITS.structure_share * whole:
        return None
    waiting = sorted(1 - share for pid, share in shares.items() if pid != first)
    line = time_by_line(rows)[0][0]
    largest = max(costs, key=lambda cost: cost.ns)
    return Explanation(
        saved,
        (
            f"{busiest.name} (process {first}) works for {shares[first]:.0%} of its time, the "
            f"other {len(waiting)} wait for {waiting[0]:.0%} to {waiting[-1]:.0%} of theirs",
            f"its most expensive lines: {describe_lines(evidence, rows) or describe_place(line)}",
            "without it, the next busiest process would set the pace, which works for "
            f"{shares[second]:.0%} of its time",
        ),
        largest.rows,
        largest.places,
        {"process": _describe_process(busiest, evidence)},
    )


def _is_removable(cost: Cost, share: float) -> bool:
    """Return whether a process's cost could be removed, and not only moved to another process."""
    # A cost that is spread over a function, or is stepping, acting or learning itself, may be
    # needed unless it takes half of the process's time. Sending and receiving can't be removed.
    between = sum(
        row.ns
        for row in cost.rows
        if any("/multiprocessing/" in frame.file for frame in library_frames(row.stack))
    )
    if between > 0.5 * cost.ns:
        return False
    if cost.is_core_work or cost.is_spread:
        return share >= LIMITS.large_share
    return share >= (LIMITS.waste_share if cost.is_waste else LIMITS.cost_share)


def _describe_process(process: ProfiledProcess, evidence: Evidence) -> str:
    """Return a process's name and main function, since forked processes have no own names."""
    counts: list[tuple[str, int]] = []
    for row in evidence.rows_of(process):
        names = (frame.function for frame in row.stack.frames if not is_library(frame))
        # Count the outermost function below the script's entry.
        inside = (name for name in names if name not in ("<module>", "main"))
        counts += [(name, row.sample.count) for name in islice(inside, 1)]
    return ", ".join([process.name, *(f"`{name}`" for name in ranked(sums(counts))[:1])])
