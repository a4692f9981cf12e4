"""Linear layers of perceptrons, as torch functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision, product

if TYPE_CHECKING:
    from hotloop.policies.perceptrons import PerceptronLayers

# A product with few columns costs BLAS 21 µs, transposed 6 (256×64 by 64×2, one core).
_NARROW_INPUTS, _NARROW_OUTPUTS = 64, 8


class Arithmetic(NamedTuple):
    """The operations that a perceptron is computed by.

    Attributes:
        linear: of inputs, (B, D), a weight, (D, H), and a bias, (H,): (B, H).
        activations: by name.
    """

    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    activations: Mapping[str, Callable[[Tensor], Tensor]]


def learning_arithmetic(precision: Precision) -> Arithmetic:
    """Return the operations that are differentiated, and compiled, fastest."""
    linear = partial(narrow_or_dense, precision=precision)
    return Arithmetic(linear, {"tanh": tanh, "relu": torch.relu})


def _addmm(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, inputs, weight)


# What every exporter knows.
PORTABLE = Arithmetic(_addmm, {"tanh": torch.tanh, "relu": torch.relu})


def narrow_or_dense(inputs: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> Tensor:
    """Return `dense`, of few inputs and outputs by the transposed product."""
    if weight.shape[0] <= _NARROW_INPUTS and weight.shape[1] <= _NARROW_OUTPUTS:
        return _add(product(weight.t(), inputs.t(), precision).t(), bias)
    return dense(inputs, weight, bias, precision)


def dense(inputs: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> Tensor:
    """Return inputs · weight + bias, float32, (B, H), or (K, B, H) of a stack of K."""
    return _add(product(inputs, weight, precision), bias)


def _add(products: Tensor, bias: Tensor) -> Tensor:
    """Return the sum, compiled so that a compiler does not make one call of it and the product.

    `addmm` copies the bias for each row first: 10 µs of 90 for 256×256. Left alone, the sum fuses
    with the activation. Not compiled, the gradient of the difference takes two more calls.
    """
    return products.sub(bias, alpha=-1) if torch.compiler.is_compiling() else products + bias


class PerceptronModule(nn.Module):
    """Perceptrons with parameters of their own: they act through torch, or are exported.

    Attributes:
        by_name: the parameters, which give the outputs themselves (`Head.fold`).
    """

    def __init__(self, layers: PerceptronLayers) -> None:
        super().__init__()
        shapes = layers.plain_shapes()
        # In a list, since a name may not hold a dot.
        self._values = nn.ParameterList(nn.Parameter(torch.zeros(s)) for s in shapes.values())
        self._names = list(shapes)
        self._layers = layers

    @property
    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters."""
        return dict(zip(self._names, self._values, strict=True))

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the head, (B, H), and, where there is one, the value, (B,)."""
        head, value = self._layers.outputs(self.by_name, obs, PORTABLE)
        return head if value is None else (head, value)
