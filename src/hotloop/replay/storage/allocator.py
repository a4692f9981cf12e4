"""Memory for a buffer's arrays: anonymous, or mapped from a file."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from hotloop.errors import OutputError
from hotloop.types import Array

_CACHE_LINE_BYTES = 64


class Allocator:
    """An allocator of arrays that start at a cache line.

    Args:
        directory: directory for the files of mapped arrays; None: anonymous memory. The files have
            no names, so they vanish however the process ends. Their space is reserved immediately,
            since a full disk under a mapped file would kill the process later.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = None if directory is None else Path(directory)

    def allocate(self, num_bytes: int) -> Array:
        """Return a large array, uint8, (num_bytes,), in a file if there is a directory."""
        if self.directory is None or num_bytes == 0:
            return aligned_array(num_bytes, np.uint8)
        try:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:  # macOS can't reserve space
                    file.truncate(num_bytes)
                return np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.uint8)
        except OSError as error:
            raise OutputError(
                f"no {num_bytes:,} bytes for the replay in {self.directory} "
                f"({error.strerror or error}): name a directory on a disk that has them"
            ) from error


def aligned_array(size: int, dtype: DTypeLike, fill: float | None = None) -> Array:
    """Return a new array, (size,), that starts at a cache line. A write allocates a page."""
    dtype = np.dtype(dtype)
    make = np.zeros if fill == 0 else np.empty
    raw = make(size * dtype.itemsize + _CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    array = raw[start : start + size * dtype.itemsize].view(dtype)
    if fill:
        array[:] = fill
    return array
