"""Refusal of what would not fit into memory, before any of it is taken."""

from __future__ import annotations

from hotloop import kernel
from hotloop.errors import ConfigError

# What is so small is not asked for: the question takes 0.2 ms.
_SMALL_BYTES = 2**24
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


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
    free = kernel.available_memory() if size_bytes > _SMALL_BYTES else None
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
