"""Cores that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress

from hotloop.system.groups import control_groups


def available_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by its groups' quotas."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    for directory, is_first in control_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        with suppress(OSError, ValueError):
            texts = [(directory / name).read_text(encoding="utf-8") for name in names]
            quota, period = " ".join(texts).split()
            if quota not in ("max", "-1"):
                count = min(count, max(1, int(quota) // int(period)))
    return count
