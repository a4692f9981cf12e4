"""Standard normal noise for updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotloop.ops.tensor_draws import DrawTable
from hotloop.types import Array


class HostNoise:
    """Noise from a NumPy generator, in one tensor per shape, which the next draw overwrites."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._buffers: dict[tuple[int, ...], tuple[Tensor, Array]] = {}

    def draw(self, shape: tuple[int, ...], batch_number: int) -> Tensor:
        """Return noise, float32, of this shape. The batch number is unused."""
        buffer = self._buffers.get(shape)
        if buffer is None:
            tensor = torch.empty(shape, dtype=torch.float32)
            buffer = self._buffers[shape] = tensor, tensor.numpy()
        self._rng.standard_normal(dtype=np.float32, out=buffer[1])
        return buffer[0]


class NumberedNoise:
    """Noise that depends only on the seed and the batch's number, on any device, see `DrawTable`.

    Args:
        seed: integers ≥ 0.
        size: maximum number of random numbers for all updates of one batch.
        device: the device of the updates.
        max_batches: maximum number of batches whose noise is used at once.

    Attributes:
        table: the noise by batch, or None if the updates need none.
    """

    def __init__(
        self, seed: Sequence[int], size: int, device: torch.device, max_batches: int = 1
    ) -> None:
        self.table = DrawTable(seed, size, "normal", device, max_batches) if size else None
        self._batch_number, self._offset = -1, 0
        self._row: Tensor | None = None

    def draw(self, shape: tuple[int, ...], batch_number: int) -> Tensor:
        """Return the next noise of a batch, float32, of this shape."""
        assert self.table is not None
        if self._row is None or batch_number != self._batch_number:
            self._batch_number, self._offset = batch_number, 0
            self._row = self.table.tensor[self.table.row_of(batch_number)]
        size = math.prod(shape)
        noise = self._row[self._offset : self._offset + size].view(shape)
        self._offset += size
        return noise
