"""A pool of frames, in chunks, so that it grows without moving the existing frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.replay.storage.allocator import Allocator
from hotloop.replay.storage.layout import FrameField
from hotloop.types import Array


class FramePool:
    """The frames of one field. Compiled code counts references, allocates and releases frames.

    Args:
        field: the field.
        capacity: capacity of the buffer, and the initial number of frames.
        num_heads: number of further transitions that may wait for their windows.
        allocator: allocator of the chunks.
        record: the pool's `PoolRecord` for compiled code.
    """

    def __init__(
        self, field: FrameField, capacity: int, num_heads: int, allocator: Allocator, record: Any
    ) -> None:
        self.field = field
        self._allocator = allocator
        self._record = record
        shift = max(6, (capacity // 32).bit_length())
        self._frames_per_chunk = 1 << shift
        max_frames = 2 * field.stack * (capacity + num_heads + 2)
        self.chunks: list[Array] = []
        self._table = np.zeros(max_frames // self._frames_per_chunk + 2, np.int64)
        self.counts = np.zeros(0, np.int32)
        self.free = np.zeros(0, np.int32)
        self._next_frames = np.zeros(field.stack, np.int32)
        for name in ("refs", "next_refs", "stack", "frame_bytes"):
            record[name] = getattr(field, name)
        record["chunks"] = self._table.ctypes.data
        record["chunk_shift"] = shift
        record["next_frames"] = self._next_frames.ctypes.data
        self.grow(capacity)

    @property
    def num_used(self) -> int:
        """Number of frames allocated so far, including released ones."""
        return int(self._record["num_used"])

    @property
    def num_free(self) -> int:
        """Number of released frames."""
        return int(self._record["num_free"])

    def restore_counts(self, num_used: int, num_free: int) -> None:
        """Restore the counts of a saved pool. The caller restores the frames.

        Raises:
            ValueError: the counts are impossible.
        """
        if not 0 <= num_free <= num_used <= len(self._table) * self._frames_per_chunk:
            raise ValueError(f"{num_free} of {num_used} frames are free")
        self.grow(max(num_used - len(self.counts), 0))
        self._record["num_used"] = num_used
        self._record["num_free"] = num_free

    def is_tight(self) -> bool:
        """Return whether one more transition might not fit."""
        room = self._record["num_frames"] - self._record["num_used"]
        return bool(room + self._record["num_free"] < 2 * self.field.stack)

    def grow(self, num_frames: int) -> None:
        """Add room for at least this many frames, in whole chunks.

        Raises:
            OutputError: the disk has no space for the file.
            MemoryError: there is not enough memory.
        """
        for _ in range(-(-num_frames // self._frames_per_chunk)):
            chunk = self._allocator.allocate(self._frames_per_chunk * self.field.frame_bytes)
            zeros = np.zeros(self._frames_per_chunk, np.int32)
            # Both or none: the record has the addresses of the old ones.
            counts, free = (np.concatenate([x, zeros]) for x in (self.counts, self.free))
            self.counts, self.free = counts, free
            self._table[len(self.chunks)] = chunk.ctypes.data
            self.chunks.append(chunk)
            self._record["counts"] = self.counts.ctypes.data
            self._record["free"] = self.free.ctypes.data
            self._record["num_frames"] = len(self.counts)

    def size_bytes(self) -> int:
        """Return the size of the pool in bytes."""
        pieces = sum(chunk.nbytes for chunk in self.chunks)
        return pieces + self.counts.nbytes + self.free.nbytes

    def pieces(self) -> list[Array]:
        """Return the parts of the chunks that contain frames."""
        bytes_left, pieces = self.num_used * self.field.frame_bytes, []
        for chunk in self.chunks:
            pieces.append(chunk[: min(bytes_left, chunk.nbytes)])
            bytes_left -= pieces[-1].nbytes
        return pieces
