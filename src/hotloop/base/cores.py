"""Number of cores that this process may use, and number of idle ones among them."""

from __future__ import annotations

import os
from contextlib import suppress

from hotloop.base import control_groups


def available_cores() -> int:
    """Return the number of cores that the CPU affinity and control group quotas allow."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    for directory, is_version_1 in control_groups.group_directories("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        with suppress(OSError, ValueError):
            texts = [(directory / name).read_text(encoding="utf-8") for name in names]
            quota, period = " ".join(texts).split()
            if quota not in ("max", "-1"):
                count = min(count, max(1, int(quota) // int(period)))
    return count


def free_cores() -> int | None:
    """Return the number of available cores that are idle now, None if unknown.

    Runnable threads of this process do not count as load. Threads of its children do.
    """
    try:
        lines = (control_groups.PROC / "stat").read_text(encoding="ascii").splitlines()
        running = next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
        num_own = 0
        for thread in (control_groups.PROC / "self" / "task").iterdir():
            with suppress(OSError):
                num_own += (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return min(available_cores(), max(0, (os.cpu_count() or 1) - max(0, running - num_own)))
