"""Cores that this process may use, and who else wants them."""

from __future__ import annotations

import os
from contextlib import suppress

from hotloop.system import groups


def available_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by its groups' quotas."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    for directory, is_first in groups.control_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        with suppress(OSError, ValueError):
            texts = [(directory / name).read_text(encoding="utf-8") for name in names]
            quota, period = " ".join(texts).split()
            if quota not in ("max", "-1"):
                count = min(count, max(1, int(quota) // int(period)))
    return count


def free_cores() -> int | None:
    """Return the cores that no other process's thread wants at this moment; None: not known.

    Of those that this process may use. Threads of its own are not counted, only its children's.
    """
    try:
        lines = (groups.PROC / "stat").read_text(encoding="ascii").splitlines()
        running = next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
        own = 0
        for thread in (groups.PROC / "self" / "task").iterdir():
            with suppress(OSError):
                own += (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return min(available_cores(), max(0, (os.cpu_count() or 1) - max(0, running - own)))
