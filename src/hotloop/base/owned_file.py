"""Files that hotloop keeps open in a process of the user's."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = "the program has closed its descriptor"


class OwnedFile:
    """A file descriptor that checks before each use that it still refers to the same file.

    A program that becomes a daemon closes all descriptors, and the next file that it opens may get
    the number of one of hotloop's. hotloop must neither use nor close that file.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._identity = (0, 0)

    def __bool__(self) -> bool:
        return self._descriptor >= 0

    def open(self, path: str | Path, flags: int) -> None:
        """Open a file, which a program that replaces this one does not inherit."""
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._identity = file_identity(self._descriptor)

    def create(self, directory: Path, stem: str, suffix: str, access: int) -> Path:
        """Create a new file and return its path.

        Args:
            directory: an existing directory.
            stem, suffix: parts of the name. If the file exists: `<stem>-2<suffix>`, and so on.
            access: os.O_RDWR or os.O_WRONLY, with further flags if needed.
        """
        path = directory / (stem + suffix)
        attempt = 1
        while True:
            try:
                self.open(path, access | os.O_CREAT | os.O_EXCL)
                return path
            except FileExistsError:
                attempt += 1
                path = directory / f"{stem}-{attempt}{suffix}"

    def descriptor(self) -> int:
        """Return the descriptor. Raise OSError if it was closed or refers to another file."""
        try:
            if self._descriptor >= 0 and file_identity(self._descriptor) == self._identity:
                return self._descriptor
        except OSError:
            pass
        raise OSError(errno.EBADF, CLOSED)

    def close(self) -> None:
        """Close the file if the descriptor still refers to it."""
        with suppress(OSError):
            os.close(self.descriptor())
        self._descriptor = -1


def file_identity(descriptor: int) -> tuple[int, int]:
    """Return what identifies the file of a descriptor. Raise OSError if it is closed."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
