"""Random numbers of numbered batches, on the device that uses them.

The numbers of batch n are a function of (seed, n): they do not depend on how many batches are drawn
at a time, and a checkpoint needs no generator's state.

They are drawn in blocks, each by a generator with a seed of its own: one kernel for some 64
batches. A launch takes its rows from the table by index. Philox written in operations on tensors
(`tensor_noise`) would need no table, but it is 220 operations: one kernel where they are compiled,
and 220 in an eager update or in a CUDA graph of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from hotloop.types import Array

_BLOCK_ROWS = 64
_BLOCK_NUMBERS = 2**20  # at most, unless one row has more


class DrawTable:
    """A table that holds the rows of the batches to come.

    Args:
        seed: whole numbers from 0 on.
        size: random numbers a batch.
        kind: "uniform", float64 in [0, 1), or "normal", float32.
        device: the device.
        most: rows that are used at once, at most.

    Attributes:
        tensor: (R, size). A row stays until `place` is called for one that lies R or more after it.
    """

    def __init__(
        self,
        seed: Sequence[int],
        size: int,
        kind: Literal["uniform", "normal"],
        device: torch.device,
        most: int = 1,
    ) -> None:
        self._seed, self._is_uniform = tuple(seed), kind == "uniform"
        # No function of `most`: it must not decide what is drawn.
        self._block = max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // size))
        self._held = [-1] * (-(-most // self._block) + 1)  # the block that lies in each place
        dtype = torch.float64 if self._is_uniform else torch.float32
        self._num_rows = len(self._held) * self._block
        self.tensor = torch.zeros((self._num_rows, size), dtype=dtype, device=device)
        self._generator = torch.Generator(device)

    def place(self, number: int, count: int = 1) -> int:
        """Return where the row of a batch lies; those of the next ones follow, round the end.

        Args:
            number: of the first batch, from 0 on.
            count: batches whose rows are needed.
        """
        for block in range(number // self._block, (number + count - 1) // self._block + 1):
            if self._held[block % len(self._held)] != block:
                self._fill(block)
        return number % self._num_rows

    def places(self, number: int, count: int) -> Array:
        """Return where the rows of some batches lie, int64, (count,); arguments as of `place`."""
        first = self.place(number, count)
        return np.arange(first, first + count) % self._num_rows

    def _fill(self, block: int) -> None:
        place = block % len(self._held)
        rows = self.tensor[place * self._block : (place + 1) * self._block]
        state = np.random.SeedSequence([*self._seed, block]).generate_state(1, np.uint64)
        self._generator.manual_seed(int(state[0] >> np.uint64(1)))
        if self._is_uniform:
            rows.uniform_(generator=self._generator)
        else:
            rows.normal_(generator=self._generator)
        self._held[place] = block
