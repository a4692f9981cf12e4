"""Offsets between the clocks of other machines and that of the reference machine.

The reference is the machine on which a program was started. `clocks.json`, beside recordings from
other machines, stores its boot id, and for each other boot the node, the offset to add to its
times, and the error of this offset. All times are CLOCK_MONOTONIC in nanoseconds since boot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hotloop.base.files import atomic_write, read_regular

CLOCKS = "clocks.json"
# Processes on different machines may have equal pids, so those of other machines are moved above
# the largest pid of any kernel.
_NUM_PIDS = 2**32


class Clock(NamedTuple):
    """The clock of another machine, relative to the reference.

    Attributes:
        node: name of the machine.
        offset_ns: offset to add to its times.
        error_ns: upper bound of the error of `offset_ns`.
        first_pid: offset to add to its pids.
    """

    node: str
    offset_ns: int
    error_ns: int
    first_pid: int = 0


class Clocks(NamedTuple):
    """The clocks of all machines.

    Attributes:
        boot_id: boot id of the reference machine.
        by_boot: clocks of the other machines by boot id.
    """

    boot_id: str
    by_boot: Mapping[str, Clock]

    def write(self, directory: Path) -> None:
        """Write `clocks.json` into a directory of recordings."""
        by_boot = {boot: clock._asdict() for boot, clock in self.by_boot.items()}
        text = json.dumps({"boot_id": self.boot_id, "others": by_boot}, indent=1)
        with atomic_write(directory / CLOCKS) as partial:
            partial.write_text(text, encoding="utf-8")


def read_clocks(directory: Path) -> Clocks:
    """Read the clocks of a directory of recordings. Return no clocks without a valid file."""
    try:
        content = json.loads(read_regular(directory / CLOCKS))
        by_boot = {boot: _checked(Clock(**clock)) for boot, clock in content["others"].items()}
        return Clocks(str(content["boot_id"]), by_boot)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Clocks("", {})


def _checked(clock: Clock) -> Clock:
    """Return a clock from a file, or raise ValueError if a value is impossible."""
    numbers = clock.offset_ns, clock.error_ns, clock.first_pid
    if type(clock.node) is not str or not all(type(x) is int and abs(x) < 2**62 for x in numbers):
        raise ValueError("a clock has impossible values")
    return clock


def node_clocks(boot_id: str, nodes: Mapping[str, tuple[str, int, int]]) -> Clocks:
    """Return the clocks of nodes.

    Args:
        boot_id: boot id of the reference machine.
        nodes: boot id, offset and error in ns of each node, by name. Nodes on the reference machine
            are skipped.
    """
    by_boot = {
        boot: Clock(node, offset_ns, error_ns, (number + 1) * _NUM_PIDS)
        for number, (node, (boot, offset_ns, error_ns)) in enumerate(nodes.items())
        if boot != boot_id
    }
    return Clocks(boot_id, by_boot)
