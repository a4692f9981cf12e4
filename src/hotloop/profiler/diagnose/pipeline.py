"""A pipeline of processes, of which one is at work all the time and the others wait for it."""

from __future__ import annotations

from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import LARGE, costs_of
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    below,
    by_line,
    place,
    places_of,
    told_lines,
    waits,
)
from hotloop.profiler.diagnose.findings import TOLD, WASTE
from hotloop.profiler.session import Process, is_library


def starved_stage(evidence: Evidence) -> Diagnosis | None:
    """Exactly one of three and more processes is at work all the time; the others starve.

    "All the time" is 85 %, "starve" below two thirds: in between, processes are as even as queues
    and chance let them be. A vector environment's processes wait by design, and are none of this;
    neither is a learner that does nothing but learn.
    """
    session, whole = evidence.session, evidence.whole_ns
    if evidence.spans(evidence.main, "vector_step")[0]:
        return None
    busy = {
        one.pid: evidence.busy_ns(one)
        for one in session.processes
        if sum(row.sample.count for row in evidence.rows_of(one)) > 100
    }
    # What a process did before there was anything to wait for is starting.
    starting = {
        pid: sum(
            row.sample.elapsed_ns
            for row in evidence.rows_of(one)
            if row.stage == "import" and not waits(row)
        )
        for one in session.processes
        if (pid := one.pid) in busy
    }
    if len(busy) < 3:
        return None
    lived = {
        one.pid: max(1, one.duration_ns - starting.get(one.pid, 0)) for one in session.processes
    }
    shares = {pid: max(0, ns - starting[pid]) / lived[pid] for pid, ns in busy.items()}
    first, second, *_ = sorted(shares, key=lambda pid: -shares[pid])
    if shares[first] < 0.85 or shares[second] > 0.67:
        return None
    dearest = next(one for one in session.processes if one.pid == first)
    saved = (shares[first] - shares[second]) * lived[first]
    # The others still need cores, and what is inherent stays.
    cpu = evidence.cpu_ns - dearest.cpu_ns
    rows = [row for row in evidence.rows_of(dearest) if not waits(row)]
    at_work = sum(row.ns for row in rows)
    removable = sum(cost.ns for cost in costs_of(rows) if _is_removable(cost, cost.ns / at_work))
    saved = min(saved, removable, whole - cpu / max(evidence.main.cores, 1))
    if saved < 0.15 * whole:
        return None
    waiting = sorted(1 - share for pid, share in shares.items() if pid != first)
    line = by_line(rows)[0][0]
    return Diagnosis(
        "starved-pipeline",
        f"all processes wait for {_told(dearest, evidence)}",
        0.9,
        evidence.gain(saved),
        (
            f"{dearest.name} (process {first}) is at work for {shares[first]:.0%} of its time; the "
            f"{len(waiting)} others wait for {waiting[0]:.0%} to {waiting[-1]:.0%} of theirs",
            f"what it does: {told_lines(evidence, rows) or place(line)}",
            "the next busiest sets the pace once it is out of the way: "
            f"{shares[second]:.0%} at work",
        ),
        "Take work out of it (copy whole arrays instead of elements, convert once, send less), or "
        "let two processes do it.",
        evidence.profile_again,
        places_of(rows),
    )


def _is_removable(cost: Cost, share: float) -> bool:
    """Whether a cost of a process could be taken out of it, and not only be somewhere else.

    What is many small costs, or what the process is for, has to be done by somebody; a single
    line or loop that has half of the process's time need not be. Sending and receiving is what ties
    the processes together.
    """
    between = sum(
        row.ns
        for row in cost.rows
        if any("/multiprocessing/" in one.file for one in below(row.stack))
    )
    if between > 0.5 * cost.ns:
        return False
    if cost.is_own_work or cost.is_spread:
        return share >= LARGE
    return share >= (WASTE if cost.is_waste else TOLD)


def _told(process: Process, evidence: Evidence) -> str:
    """A process by what runs in it: forked ones have no names."""
    counts: dict[str, int] = {}
    for row in evidence.rows_of(process):
        frames = [frame for frame in row.stack.frames if not is_library(frame)]
        # The outermost that is not the program's own way to it.
        for frame in frames:
            if frame.function not in ("<module>", "main"):
                counts[frame.function] = counts.get(frame.function, 0) + row.sample.count
                break
    if not counts:
        return process.name
    return f"{process.name}, `{max(counts, key=lambda name: counts[name])}`"
