"""Room for frames, in pieces, so that it grows without moving what is there."""

from __future__ import annotations

import numpy as np

from hotloop.replay import rows
from hotloop.replay.layout import Apart
from hotloop.replay.memory import Memory
from hotloop.types import Array


class FramePool:
    """The frames of one field that lies apart; the jitted code counts them and hands them out.

    Args:
        apart: the field.
        capacity: of the buffer; there is room for that many frames at once.
        num_heads: transitions that may wait besides.
        memory: where the frames lie.
        words: int64, (APART_WORDS,), what the jitted code knows of this pool.
    """

    def __init__(
        self, apart: Apart, capacity: int, num_heads: int, memory: Memory, words: Array
    ) -> None:
        self.apart = apart
        self._memory = memory
        self._words = words
        shift = max(6, (capacity // 32).bit_length())
        self._per_chunk = 1 << shift
        most = 2 * apart.stack * (capacity + num_heads + 2)
        self.chunks: list[Array] = []
        self._table = np.zeros(most // self._per_chunk + 2, np.int64)
        self.counts = np.zeros(0, np.int32)
        self.free = np.zeros(0, np.int32)
        self._taken = np.zeros(apart.stack, np.int32)
        words[rows.APART_REFS] = apart.refs
        words[rows.APART_NEXT_REFS] = apart.next_refs
        words[rows.APART_STACK] = apart.stack
        words[rows.APART_FRAME_BYTES] = apart.frame_bytes
        words[rows.APART_CHUNKS] = self._table.ctypes.data
        words[rows.APART_CHUNK_SHIFT] = shift
        words[rows.APART_TAKEN] = self._taken.ctypes.data
        self.grow(capacity)

    @property
    def num_used(self) -> int:
        """Frames that were ever taken."""
        return int(self._words[rows.APART_USED])

    @property
    def num_free(self) -> int:
        """Of these, how many were given back."""
        return int(self._words[rows.APART_NUM_FREE])

    def reopen(self, num_used: int, num_free: int) -> None:
        """Stand where another pool stood; who calls fills in the frames.

        Raises:
            ValueError: no pool can stand there.
        """
        if not 0 <= num_free <= num_used <= len(self._table) * self._per_chunk:
            raise ValueError(f"{num_free} of {num_used} frames are free")
        self.grow(max(num_used - len(self.counts), 0))
        self._words[rows.APART_USED] = num_used
        self._words[rows.APART_NUM_FREE] = num_free

    def is_tight(self) -> bool:
        """Whether one more transition may not find room."""
        room = self._words[rows.APART_TOTAL] - self._words[rows.APART_USED]
        return bool(room + self._words[rows.APART_NUM_FREE] < 2 * self.apart.stack)

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
            self._words[rows.APART_COUNTS] = self.counts.ctypes.data
            self._words[rows.APART_FREE] = self.free.ctypes.data
            self._words[rows.APART_TOTAL] = len(self.counts)

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
