"""Creation of run directories."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hotloop.base.files import sync
from hotloop.errors import RunDirectoryError


def default_name(*parts: str) -> str:
    """Return a directory name from parts and the current time, joined by `__`."""
    stem = re.sub(r"[^\w.+-]+", "-", "__".join(parts))
    return f"{stem}__{time.strftime('%Y%m%d-%H%M%S')}"


def create_directory(directory: Path, *, may_rename: bool) -> Path:
    """Create a directory durably and return it.

    Args:
        directory: the new directory.
        may_rename: whether to append a number if it exists. Another run may have started in the
            same second.

    Raises:
        RunDirectoryError: the directory exists, or it can't be created.
    """
    target, count = directory, 1
    while not _create(target):
        if not may_rename:
            raise RunDirectoryError(
                f"the run directory {directory} must be new, but it exists: pass another "
                "--run-dir, or remove it first"
            )
        count += 1
        target = directory.with_name(f"{directory.name}-{count}")
    return target


def _create(directory: Path) -> bool:
    """Create a directory. Return False if it exists."""
    try:
        missing = [parent for parent in directory.parents if not parent.exists()]
        directory.mkdir(parents=True)
        sync(*(path.parent for path in (directory, *missing)))
    except OSError as error:
        if isinstance(error, FileExistsError) and directory.exists():
            return False
        raise RunDirectoryError(
            f"the run directory {directory} can't be created ({error.strerror}): pass a --run-dir "
            "or --runs-dir that can be written"
        ) from error
    return True
