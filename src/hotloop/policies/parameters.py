"""All parameters of a network in one flat tensor.

With one vector, clipping takes one norm, Adam six operations and copying one copy, independent of
the number of layers. Launching operations takes most of an eager step of 64×64 networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotloop.base.transfer import to_device
from hotloop.types import Array


@dataclass(frozen=True)
class ParameterLayout:
    """The positions of named parameters in the flat tensor.

    Attributes:
        shapes: shape by name, in order.
    """

    shapes: dict[str, tuple[int, ...]]

    @property
    def sizes(self) -> list[int]:
        """Return the number of elements of each parameter, in order."""
        return [math.prod(shape) for shape in self.shapes.values()]

    def pack(self, params: Mapping[str, Array], device: torch.device | str = "cpu") -> Tensor:
        """Return one flat float32 tensor on the device, (P,), from arrays by name."""
        flat = np.concatenate([np.ravel(params[name]) for name in self.shapes])
        return to_device(flat.astype(np.float32), device)

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views by name. The gradient of the split is one concatenation."""
        parts = flat.split(self.sizes)
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def views(self, flat: Tensor) -> dict[str, Array]:
        """Return arrays by name that share the tensor's memory."""
        return {name: part.numpy() for name, part in self.unpack(flat.detach()).items()}
