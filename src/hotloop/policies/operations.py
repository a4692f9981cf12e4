"""The operations that layers are made of, which learning, acting and exporting do differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Operations(NamedTuple):
    """Functions of tensors.

    Attributes:
        linear: of inputs, (B, D), a weight, (D, H), and a bias, (H,): (B, H).
        convolve: of inputs, (B, C, height, width), a kernel, (H, C, k, k), a bias, (H,), a stride
            and a padding: (B, H, …, …).
        tanh: the hyperbolic tangent.
    """

    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    tanh: Callable[[Tensor], Tensor]
