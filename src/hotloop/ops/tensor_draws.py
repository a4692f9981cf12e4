"""Random numbers for numbered batches, on the device that uses them.

The numbers of batch n are a function of (seed, n). They do not depend on how many batches are drawn
at a time, and a checkpoint needs no generator state.

Numbers are drawn in blocks, each with its own generator seed: one kernel for up to 64 batches. An
update reads its rows from the table by index. Philox in tensor operations (`ops.noise`) would
need no table, but it has 220 operations. They are one kernel in a compiled update, and 220 kernels
in an eager update or its CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from hotloop.types import Array

_BLOCK_ROWS = 64
_BLOCK_NUMBERS = 2**20  # maximum number in a block, unless one row has more


class DrawTable:
    """A table of random numbers for the next batches, one row per batch.

    Args:
        seed: Non-negative integers.
        size: Random numbers per batch.
        kind: "uniform", float64 in [0, 1), or "normal", float32.
        device: The device.
        max_rows: The largest number of rows that are used at once.

    Attributes:
        tensor: (R, size). A row is valid until `row_of` is called for a batch R or more later.
    """

    def __init__(
        self,
        seed: Sequence[int],
        size: int,
        kind: Literal["uniform", "normal"],
        device: torch.device,
        max_rows: int = 1,
    ) -> None:
        self._seed, self._is_uniform = tuple(seed), kind == "uniform"
        # The size of a block does not depend on `max_rows`, which must not change the numbers.
        self._block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // size))
        self._stored_blocks = [-1] * (
            -(-max_rows // self._block_rows) + 1
        )  # the block at each position of the table
        dtype = torch.float64 if self._is_uniform else torch.float32
        self._num_rows = len(self._stored_blocks) * self._block_rows
        self.tensor = torch.zeros((self._num_rows, size), dtype=dtype, device=device)
        self._generator = torch.Generator(device)

    def row_of(self, number: int, count: int = 1) -> int:
        """Return the row of a batch. The rows of the next batches follow, modulo the table's size.

        Args:
            number: Number of the first batch, from 0.
            count: Number of batches.
        """
        for block in range(
            number // self._block_rows, (number + count - 1) // self._block_rows + 1
        ):
            if self._stored_blocks[block % len(self._stored_blocks)] != block:
                self._fill(block)
        return number % self._num_rows

    def rows_of(self, number: int, count: int) -> Array:
        """Return the rows of several batches, int64, (count,), see `row_of`."""
        first = self.row_of(number, count)
        return np.arange(first, first + count) % self._num_rows

    def _fill(self, block: int) -> None:
        place = block % len(self._stored_blocks)
        rows = self.tensor[place * self._block_rows : (place + 1) * self._block_rows]
        state = np.random.SeedSequence([*self._seed, block]).generate_state(1, np.uint64)
        self._generator.manual_seed(int(state[0] >> np.uint64(1)))
        if self._is_uniform:
            rows.uniform_(generator=self._generator)
        else:
            rows.normal_(generator=self._generator)
        self._stored_blocks[place] = block
