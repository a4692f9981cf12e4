"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hotloop.errors import HotloopError, OutputError


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Another name to write to, beside `path`; it takes `path`'s place when the body has ended.

    Whatever fails or interrupts the body, nothing half-written is left, and what `path` held before
    stays. Missing directories are made. The other name has the same suffix.

    Raises:
        OutputError: the directory or the file can't be written.
    """
    aside = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.touch()  # whether it can be written is known before the work begins
        yield aside
        os.replace(aside, path)
    except OSError as error:
        if isinstance(error, HotloopError):
            raise
        why = error.strerror or str(error).strip().split("\n")[0]
        if isinstance(error, FileExistsError):  # of mkdir
            why = "a part of its path is a file"
        free = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OutputError(f"{path} can't be written ({why}): {free}name another place") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
