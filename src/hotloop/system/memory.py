"""Memory that is free, and the refusal of what would not fit into it, before any is taken."""

from __future__ import annotations

import os
from contextlib import suppress

from hotloop.errors import ConfigError
from hotloop.system import groups

_NO_LIMIT = 2**62  # what the first version of groups says is some pages less than 2⁶³

# What is so small is not asked for: the question takes 0.2 ms.
_SMALL_BYTES = 2**24
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


def available_memory() -> int | None:
    """Return the bytes that may still be used, by the machine and by this process's groups.

    Where the system tells only how much there is at all, it is that; None: not known.
    """
    found: list[int] = []
    with suppress(OSError, ValueError):
        for line in (groups.PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for directory, is_first in groups.control_groups("memory"):
        names = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
        with suppress(OSError, ValueError):
            most, used, statistics = (
                (directory / f"memory.{name}").read_text(encoding="utf-8").strip()
                for name in (*names, "stat")
            )
            if most == "max" or int(most) >= _NO_LIMIT:
                continue
            # What files are cached in is given back when it is needed.
            prefix = "total_" if is_first else ""
            cached = (f"{prefix}active_file", f"{prefix}inactive_file")
            sizes = dict(line.split() for line in statistics.splitlines())
            held = int(used) - sum(int(sizes.get(name, 0)) for name in cached)
            found.append(max(0, int(most) - held))
    if not found and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def need_memory(size_bytes: int, what: str, advice: str) -> None:
    """Refuse what takes more than the machine, or this process's group, has free.

    Where that is not known, nothing is refused. What passes may still fail later: others take
    memory too, and `size_bytes` is a lower bound.

    Args:
        size_bytes: that it takes at least.
        what: it is, in the plural, as the sentence begins.
        advice: what to do instead.

    Raises:
        ConfigError: there is not as much.
    """
    free = available_memory() if size_bytes > _SMALL_BYTES else None
    if free is not None and size_bytes > free:
        raise ConfigError(
            f"{what} take at least {in_units(size_bytes)}, and {in_units(free)} are free: {advice}"
        )


def in_units(size_bytes: int) -> str:
    """Return a size as people read it, in two digits or more: 4.2 TiB, 18 GiB."""
    unit = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    tenths = 10 * size_bytes >> 10 * unit
    number = f"{tenths // 10}.{tenths % 10}" if tenths < 100 and unit else f"{tenths // 10:,}"
    return f"{number} {_UNITS[unit]}"
