"""Successive processes with the same process id, of which all but the first get another one."""

from __future__ import annotations

import copy
import itertools

from hotloop.profiler.session.sample_totals import SampleTotals
from hotloop.timing import Recording

# Above the ids of other machines, see `timing.clocks`.
_FIRST_PID = 2**48


def separate_reused_pids(
    recordings: dict[int, list[Recording]], totals: dict[int, list[SampleTotals]]
) -> None:
    """Move the files of later processes with the same id to ids of their own.

    The kernel reuses ids, and each container or namespace has its own process 1. A program that
    replaces itself (exec) keeps its id and its start time, and remains one process.

    Args:
        recordings, totals: files by process id.
    """
    for pid in list(totals):
        files = sorted(totals[pid], key=lambda file: file.header["start_ns"])
        new_pid = pid
        for previous, file in itertools.pairwise(files):
            ticks = previous.header.get("ticks", 0), file.header.get("ticks", 0)
            if all(ticks) and ticks[0] != ticks[1]:
                new_pid += _FIRST_PID
                end_ns = previous.end_ns or previous.header["start_ns"]
                items = recordings.pop(new_pid - _FIRST_PID, [])
                recordings[new_pid - _FIRST_PID] = [x for x in items if x.start_ns < end_ns]
                recordings[new_pid] = [copy.copy(x) for x in items if x.start_ns >= end_ns]
                for item in recordings[new_pid]:
                    item.pid = new_pid
            if new_pid != pid:
                totals[pid] = [item for item in totals[pid] if item is not file]
                totals.setdefault(new_pid, []).append(file)
                _set_pid(file, new_pid)


def _set_pid(file: SampleTotals, pid: int) -> None:
    """Change the id of a process and of its main thread."""
    old_pid, file.header["pid"] = file.header["pid"], pid
    file.samples = [
        sample._replace(thread=pid) if sample.thread == old_pid else sample
        for sample in file.samples
    ]
    for thread in file.threads:
        if thread.number == old_pid:
            thread.number = pid
