"""Memory of a buffer's arrays: anonymous, or a file that is mapped into it."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from hotloop.errors import OutputError
from hotloop.types import Array

_LINE = 64  # bytes a cache line


class Memory:
    """Gives out arrays that begin at a cache line.

    Args:
        directory: where the files of mapped arrays lie. They have no names, so nothing is left
            however the process ends; their space is reserved at once, since a full disk under a map
            would kill the process later.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = None if directory is None else Path(directory)

    def bulk(self, num_bytes: int) -> Array:
        """Bytes for what is large: uint8, (num_bytes,), in a file if there is a directory."""
        if self.directory is None or num_bytes == 0:
            return aligned(num_bytes, np.uint8)
        try:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:  # macOS can't reserve it
                    file.truncate(num_bytes)
                return np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.uint8)
        except OSError as error:
            raise OutputError(
                f"no {num_bytes:,} bytes for the replay in {self.directory} "
                f"({error.strerror or error}): name a directory on a disk that has them"
            ) from error


def aligned(size: int, dtype: DTypeLike, fill: float | None = None) -> Array:
    """A new array, (size,), that begins at a cache line; its memory is taken when it is written."""
    dtype = np.dtype(dtype)
    make = np.zeros if fill == 0 else np.empty
    raw = make(size * dtype.itemsize + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    array = raw[start : start + size * dtype.itemsize].view(dtype)
    if fill:
        array[:] = fill
    return array
