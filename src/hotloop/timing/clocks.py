"""Clocks of other machines, against that of the one on which a program began.

`clocks.json`, beside recordings that came from other machines: the boot that all times are told by,
and for each other boot its node, what to add to its times, and how far off that may be. Every time
here is CLOCK_MONOTONIC in nanoseconds, which counts from a machine's boot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hotloop.system.files import written_whole

CLOCKS = "clocks.json"
# Processes of other machines may have the numbers of ours: theirs go on above any kernel's.
_PIDS = 2**32


class Clock(NamedTuple):
    """A machine's, against ours.

    Attributes:
        node: its name.
        offset_ns: to add to its times.
        error_ns: the offset is no further off.
        first_pid: to add to its numbers of processes.
    """

    node: str
    offset_ns: int
    error_ns: int
    first_pid: int = 0


class Clocks(NamedTuple):
    """Those of all machines.

    Attributes:
        boot_id: of ours.
        others: by boot.
    """

    boot_id: str
    others: Mapping[str, Clock]

    def write(self, directory: Path) -> None:
        """Keep them beside the recordings of a directory."""
        told = {boot: clock._asdict() for boot, clock in self.others.items()}
        text = json.dumps({"boot_id": self.boot_id, "others": told}, indent=1)
        with written_whole(directory / CLOCKS) as aside:
            aside.write_text(text, encoding="utf-8")


def clocks_of(directory: Path) -> Clocks:
    """Return what is known of other machines' clocks in a directory of recordings."""
    try:
        told = json.loads((directory / CLOCKS).read_text(encoding="utf-8"))
        others = {boot: Clock(**clock) for boot, clock in told["others"].items()}
        return Clocks(str(told["boot_id"]), others)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Clocks("", {})


def compared(boot_id: str, nodes: Mapping[str, tuple[str, int, int]]) -> Clocks:
    """Return clocks of nodes.

    Args:
        boot_id: ours.
        nodes: boot, offset and error of each, by name; those of our own boot are left out.
    """
    others = {
        boot: Clock(node, offset_ns, error_ns, (number + 1) * _PIDS)
        for number, (node, (boot, offset_ns, error_ns)) in enumerate(nodes.items())
        if boot != boot_id
    }
    return Clocks(boot_id, others)
