"""Control groups: who limits this process's cores and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def control_groups(kind: str) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of this process's groups, own and above: each may have a limit.

    Args:
        kind: `cpu` or `memory`.

    Yields:
        A directory, and whether it is of the first version, whose files have other names.
    """
    lines = []
    with suppress(OSError):
        lines = (PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        mount = GROUPS / kind if kinds else GROUPS
        own = mount / path.lstrip("/")
        for directory in (own, *own.parents):
            # In a container the path may be one outside it: its own group is at the top.
            if directory.is_relative_to(mount):
                yield directory, bool(kinds)
