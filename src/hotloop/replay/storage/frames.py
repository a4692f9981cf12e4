"""Room for frames, in pieces, so that it grows without moving what is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.replay.storage.layout import Apart
from hotloop.replay.storage.memory import Memory
from hotloop.types import Array


class FramePool:
    """The frames of one field that lies apart; the jitted code counts them and hands them out.

    Args:
        apart: the field.
        capacity: of the buffer; there is room for that many frames at once.
        num_heads: transitions that may wait besides.
        memory: where the frames lie.
        record: what the compiled code knows of this pool.
    """

    def __init__(
        self, apart: Apart, capacity: int, num_heads: int, memory: Memory, record: Any
    ) -> None:
        self.apart = apart
        self._memory = memory
        self._record = record
        shift = max(6, (capacity // 32).bit_length())
        self._per_chunk = 1 << shift
        most = 2 * apart.stack * (capacity + num_heads + 2)
        self.chunks: list[Array] = []
        self._table = np.zeros(most // self._per_chunk + 2, np.int64)
        self.counts = np.zeros(0, np.int32)
        self.free = np.zeros(0, np.int32)
        self._taken = np.zeros(apart.stack, np.int32)
        for name in ("refs", "next_refs", "stack", "frame_bytes"):
            record[name] = getattr(apart, name)
        record["chunks"] = self._table.ctypes.data
        record["chunk_shift"] = shift
        record["taken"] = self._taken.ctypes.data
        self.grow(capacity)

    @property
    def num_used(self) -> int:
        """Frames that were ever taken."""
        return int(self._record["used"])

    @property
    def num_free(self) -> int:
        """Of these, how many were given back."""
        return int(self._record["num_free"])

    def reopen(self, num_used: int, num_free: int) -> None:
        """Stand where another pool stood; who calls fills in the frames.

        Raises:
            ValueError: no pool can stand there.
        """
        if not 0 <= num_free <= num_used <= len(self._table) * self._per_chunk:
            raise ValueError(f"{num_free} of {num_used} frames are free")
        self.grow(max(num_used - len(self.counts), 0))
        self._record["used"] = num_used
        self._record["num_free"] = num_free

    def is_tight(self) -> bool:
        """Whether one more transition may not find room."""
        room = self._record["total"] - self._record["used"]
        return bool(room + self._record["num_free"] < 2 * self.apart.stack)

    def grow(self, num_frames: int) -> None:
        """Have room for this many frames more, in whole pieces.

        Raises:
            OutputError: there is no space for the file.
            MemoryError: there is no memory.
        """
        for _ in range(-(-num_frames // self._per_chunk)):
            chunk = self._memory.bulk(self._per_chunk * self.apart.frame_bytes)
            more = np.zeros(self._per_chunk, np.int32)
            self.counts = np.concatenate([self.counts, more])
            self.free = np.concatenate([self.free, more])
            self._table[len(self.chunks)] = chunk.ctypes.data
            self.chunks.append(chunk)
            self._record["counts"] = self.counts.ctypes.data
            self._record["free"] = self.free.ctypes.data
            self._record["total"] = len(self.counts)

    def size_bytes(self) -> int:
        """What it takes."""
        pieces = sum(chunk.nbytes for chunk in self.chunks)
        return pieces + self.counts.nbytes + self.free.nbytes

    def pieces(self) -> list[Array]:
        """The frames that were ever taken, as they lie."""
        left, found = self.num_used * self.apart.frame_bytes, []
        for chunk in self.chunks:
            found.append(chunk[: min(left, chunk.nbytes)])
            left -= found[-1].nbytes
        return found
