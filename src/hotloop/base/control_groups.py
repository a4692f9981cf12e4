"""Control groups, which limit the cores and the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def group_directories(kind: str) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of this process's control group and its ancestors.

    Args:
        kind: `cpu` or `memory`.

    Yields:
        A directory, and whether it belongs to cgroups version 1, whose files have other names.
    """
    lines = []
    with suppress(OSError):
        lines = (PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        mount = GROUPS / kind if kinds else GROUPS
        leaf = mount / path.lstrip("/")
        for directory in (leaf, *leaf.parents):
            # The path may lie outside of this container, whose own group is then the mount point.
            if directory.is_relative_to(mount):
                yield directory, bool(kinds)
