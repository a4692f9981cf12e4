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
    """Noise from a NumPy generator, in one tensor for each shape, which the next draw overwrites.

    Args:
        rng: the generator.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._kept: dict[tuple[int, ...], tuple[Tensor, Array]] = {}

    def draw(self, shape: tuple[int, ...], number: int) -> Tensor:
        """Return float32 of this shape, whatever the number of the batch is."""
        kept = self._kept.get(shape)
        if kept is None:
            tensor = torch.empty(shape, dtype=torch.float32)
            kept = self._kept[shape] = tensor, tensor.numpy()
        self._rng.standard_normal(dtype=np.float32, out=kept[1])
        return kept[0]


class NumberedNoise:
    """Noise that is a function of the batch's number, on any device, see `DrawTable`.

    Args:
        seed: whole numbers from 0 on.
        size: numbers that the updates of one batch take together, at most.
        device: where updates run.
        most: batches whose noise is used at once, at most.

    Attributes:
        table: the noise by batch; None: the updates take none.
    """

    def __init__(self, seed: Sequence[int], size: int, device: torch.device, most: int = 1) -> None:
        self.table = DrawTable(seed, size, "normal", device, most) if size else None
        self._number, self._taken = -1, 0
        self._row: Tensor | None = None

    def draw(self, shape: tuple[int, ...], number: int) -> Tensor:
        """Return the next noise of a batch, float32 of this shape."""
        assert self.table is not None
        if self._row is None or number != self._number:
            self._number, self._taken = number, 0
            self._row = self.table.tensor[self.table.place(number)]
        size = math.prod(shape)
        noise = self._row[self._taken : self._taken + size].view(shape)
        self._taken += size
        return noise
