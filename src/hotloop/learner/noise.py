"""Standard normal noise for updates, drawn where they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class UpdateNoise:
    """Draws into one tensor for each shape, which the next draw of that shape overwrites.

    On the CPU the numbers come from NumPy's generator, elsewhere from one of torch's on the device.

    Args:
        rng: NumPy's generator; it seeds the device's.
        device: where the update runs.
    """

    def __init__(self, rng: np.random.Generator, device: torch.device) -> None:
        self._rng = rng
        self._device = device
        self._kept: dict[tuple[int, ...], tuple[Tensor, Any]] = {}
        self._generator: torch.Generator | None = None
        if device.type != "cpu":
            self._generator = torch.Generator(device)
            self._generator.manual_seed(int(rng.integers(2**62)))

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return float32 of this shape."""
        kept = self._kept.get(shape)
        if kept is None:
            tensor = torch.empty(shape, dtype=torch.float32, device=self._device)
            array = tensor.numpy() if self._generator is None else None
            kept = self._kept[shape] = tensor, array
        tensor, array = kept
        if self._generator is None:
            self._rng.standard_normal(dtype=np.float32, out=array)
        else:
            tensor.normal_(generator=self._generator)
        return tensor

    def to_json(self) -> list[int] | None:
        """The device generator's state, for a checkpoint; None on the CPU, where `rng` is all."""
        return None if self._generator is None else self._generator.get_state().tolist()

    def load(self, state: list[int] | None) -> None:
        """Go on from `to_json`; a run that changes its device goes on with other numbers."""
        if self._generator is not None and state is not None:
            self._generator.set_state(torch.tensor(state, dtype=torch.uint8))
