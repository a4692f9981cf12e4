"""Waits for programs that have just been started, which belong to the lines that start them."""

from __future__ import annotations

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.cost import main_wait
from hotloop.profiler.diagnose.evidence import SampleRow, user_positions
from hotloop.profiler.diagnose.libraries import calls_into
from hotloop.profiler.session import Frame


def with_starts(rows: list[SampleRow]) -> list[SampleRow]:
    """Return the rows with the first wait for each started program at the line that starts it.

    A program's start-up takes time when its first answer is read. That wait is in a function that
    also starts the program, directly or indirectly, in the same round of its loops. A loop that
    only reads waits for the program's work.
    """
    starts: dict[Frame, dict[int, SampleRow]] = {}
    for row in rows:
        if calls_into(row, "program_starts"):
            for position in user_positions(row.stack):
                starts.setdefault(position.frame, {}).setdefault(position.line, row)
    return [_at_start(row, starts) for row in rows] if starts else rows


def _at_start(row: SampleRow, starts: dict[Frame, dict[int, SampleRow]]) -> SampleRow:
    is_blocked = row.sample.blocked_ns >= 0.5 * row.sample.elapsed_ns
    if not is_blocked or main_wait([row]) != "pipe":
        return row
    at = next(
        (position for position in user_positions(row.stack) if position.frame in starts), None
    )
    if at is None or at.line in starts[at.frame]:
        return row
    loop = source.loop_in_function(at.frame.file, at.line)
    for line, start in starts[at.frame].items():
        if loop is None or line in loop:
            return row._replace(stack=start.stack, leaf=start.leaf)
    return row
