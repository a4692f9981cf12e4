"""Waits for new programs, connections and processes belong to the lines that start them."""

from __future__ import annotations

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.evidence import CodePosition, SampleRow, user_positions
from hotloop.profiler.diagnose.libraries import calls_into
from hotloop.profiler.session import Frame

_Starts = dict[Frame, dict[int, SampleRow]]
_OTHER_WAITS = ("sleep", "disk", "network")  # no process of this program ends them


def with_starts(rows: list[SampleRow], *, restarts_processes: bool) -> list[SampleRow]:
    """Return the rows with the waits for started programs and processes at the starting lines.

    The start-up of another program, or of a server's handler for a new connection, takes time when
    its first answer is read. That wait is in a function that also starts the program or opens the
    connection, directly or indirectly, in the same round of its loops. A loop that only reads waits
    for the program's work.

    Waits for the work of recorded processes are not in `rows`. If a program starts processes again
    and again, the remaining waits in the starting functions are for new processes.
    """
    programs: _Starts = {}
    processes: _Starts = {}
    for row in rows:
        starts = programs if calls_into(row, "program_starts") else processes
        if starts is programs or (restarts_processes and calls_into(row, "process_starts")):
            for position in user_positions(row.stack):
                starts.setdefault(position.frame, {}).setdefault(position.line, row)
    if not programs and not processes:
        return rows
    return [
        row
        if (start := _start_of(row, programs, processes)) is None
        # The sample remains the same, since it counts for the pace of the cost.
        else row._replace(stack=start.stack, leaf=start.leaf)
        for row in rows
    ]


def _start_of(row: SampleRow, programs: _Starts, processes: _Starts) -> SampleRow | None:
    """Return a row of the start that a row waits for, if any."""
    if not row.is_blocked:
        return None
    waits = row.sample.waits
    wait = max(waits, key=lambda name: waits[name], default="")
    chain = user_positions(row.stack)
    if chain and chain[0].frame in processes and wait not in _OTHER_WAITS:
        return next(iter(processes[chain[0].frame].values()))
    depth = next((i for i, position in enumerate(chain) if position.frame in programs), None)
    if depth is None or wait not in ("pipe", "network"):
        return None
    at, inner = chain[depth], chain[:depth]
    if at.line in programs[at.frame] or any(_is_in_loop(position) for position in inner):
        return None
    loop = source.loop_in_function(at.frame.file, at.line)
    starts = programs[at.frame].items()
    return next((start for line, start in starts if loop is None or line in loop), None)


def _is_in_loop(position: CodePosition) -> bool:
    return source.loop_in_function(position.frame.file, position.line) is not None
