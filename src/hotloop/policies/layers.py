"""Layers of networks, as torch functions and as a module."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision, convolution, product
from hotloop.policies.operations import Operations

if TYPE_CHECKING:
    from hotloop.policies.perceptrons import PerceptronLayers

# A product with few columns costs BLAS 21 µs, transposed 6 (256×64 by 64×2, one core).
_NARROW_INPUTS, _NARROW_OUTPUTS = 64, 8


def linear(inputs: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> Tensor:
    """Return inputs · weight + bias, float32, (B, H), or (K, B, H) for a stack of K layers."""
    is_narrow = weight.shape[-2] <= _NARROW_INPUTS and weight.shape[-1] <= _NARROW_OUTPUTS
    if is_narrow and weight.ndim == 2:
        products = product(weight.t(), inputs.t(), precision).t()
    else:
        products = product(inputs, weight, precision)
    # The subtraction prevents a compiler from merging sum and product into `addmm`, which first
    # copies the bias for each row, 10 µs of 90 for 256×256. The sum then fuses with the activation.
    # Eager code uses the sum, since the gradient of the difference takes two more calls.
    return products.sub(bias, alpha=-1) if torch.compiler.is_compiling() else products + bias


def differentiable_operations(precision: Precision) -> Operations:
    """Return the operations for gradients and compilation in a precision."""
    return Operations(
        linear=partial(linear, precision=precision),
        convolve=partial(convolution, precision=precision),
        tanh=tanh,
    )


class PerceptronModule(nn.Module):
    """Perceptrons with their own parameters, for acting through torch or for export."""

    def __init__(self, layers: PerceptronLayers) -> None:
        super().__init__()
        self._layers = layers
        # A list, since names of torch parameters must not contain a dot.
        self._values = nn.ParameterList(torch.zeros(shape) for shape in layers.shapes.values())

    @property
    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters of the layers that act (`Head.fold`)."""
        return dict(zip(self._layers.shapes, self._values, strict=True))

    def forward(self, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the head, (B, H), and, if any, the value, (B,), and the new hidden state, (B, M).

        Args:
            obs: (B, *obs_shape).
            memory: hidden state of a recurrent network, (B, M).
        """
        return self._layers.outputs(self.by_name, obs, _PLAIN, memory)


# Operations that every exporter supports.
_PLAIN = Operations(
    linear=lambda inputs, weight, bias: torch.addmm(bias, inputs, weight),
    convolve=nn.functional.conv2d,
    tanh=torch.tanh,
)
