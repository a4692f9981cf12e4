"""The operations of layers, with different versions for learning, acting and export."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Operations(NamedTuple):
    """Functions of tensors.

    Attributes:
        linear: maps inputs, (B, D), a weight, (D, H), and a bias, (H,), to (B, H).
        convolve: maps inputs, (B, C, height, width), a kernel, (H, C, k, k), a bias, (H,), a stride
            and a padding to (B, H, …, …).
        tanh: the hyperbolic tangent.
    """

    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    tanh: Callable[[Tensor], Tensor]
