"""Free memory, and checks before an allocation that it suffices."""

from __future__ import annotations

import os
from contextlib import suppress

from hotloop.base import control_groups
from hotloop.errors import ConfigError

_NO_LIMIT = 2**62  # cgroups version 1 report some pages less than 2⁶³ if there is no limit

# Smaller allocations are not checked, because a check takes 0.2 ms.
_SMALL_BYTES = 2**24
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


def available_memory() -> int | None:
    """Return the free memory in bytes that the machine and the control groups allow.

    If the system reports only its total memory, return that. Return None if nothing is known.
    """
    limits: list[int] = []
    with suppress(OSError, ValueError):
        for line in (control_groups.PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    for directory, is_version_1 in control_groups.group_directories("memory"):
        names = ("limit_in_bytes", "usage_in_bytes") if is_version_1 else ("max", "current")
        with suppress(OSError, ValueError):
            limit, used, statistics = (
                (directory / f"memory.{name}").read_text(encoding="utf-8").strip()
                for name in (*names, "stat")
            )
            if limit == "max" or int(limit) >= _NO_LIMIT:
                continue
            # The kernel frees cached files on demand.
            prefix = "total_" if is_version_1 else ""
            cached = (f"{prefix}active_file", f"{prefix}inactive_file")
            sizes = dict(line.split() for line in statistics.splitlines())
            used_bytes = int(used) - sum(int(sizes.get(name, 0)) for name in cached)
            limits.append(max(0, int(limit) - used_bytes))
    if not limits and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def require_memory(size_bytes: int, subject: str, advice: str) -> None:
    """Raise an error if an allocation exceeds the free memory.

    If the free memory is unknown, nothing is raised. The allocation may still fail, since other
    processes allocate memory too and `size_bytes` is a lower bound.

    Args:
        size_bytes: lower bound of the allocation's size.
        subject: subject of the error message, in the plural.
        advice: what the user can change.

    Raises:
        ConfigError: there is not enough free memory.
    """
    free = available_memory() if size_bytes > _SMALL_BYTES else None
    if free is not None and size_bytes > free:
        raise ConfigError(
            f"{subject} take at least {format_bytes(size_bytes)}, and {format_bytes(free)} are "
            f"free: {advice}"
        )


def format_bytes(size_bytes: int) -> str:
    """Return a size as text with at least two digits, such as 4.2 TiB or 18 GiB."""
    unit = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    tenths = 10 * size_bytes >> 10 * unit
    number = f"{tenths // 10}.{tenths % 10}" if tenths < 100 and unit else f"{tenths // 10:,}"
    return f"{number} {_UNITS[unit]}"
