"""Matrix products of a module's layers in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotloop.accelerate.shared_changes import SharedChange
from hotloop.ops.products import Precision, product

# A bfloat16 product has a fixed cost of 20 µs on a CPU. Layers with fewer inputs or outputs are
# faster in float32: 6 µs instead of 27 for 256 rows, 256 inputs and one output.
_MIN_SIZE = 64


def products_in(precision: Precision) -> AbstractContextManager[None]:
    """Compute the layers of modules in a precision in the body. Results are float32."""
    return nullcontext() if precision == "float32" else _LOW_PRODUCTS


def _lower_products() -> Callable[[], None]:
    linear, conv2d = functional.linear, functional.conv2d

    def low_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if inputs.ndim != 2 or min(weight.shape) < _MIN_SIZE:
            return linear(inputs, weight, bias)
        outputs = product(inputs, weight.t(), "bfloat16")
        return outputs if bias is None else outputs + bias

    def low_conv2d(*args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return conv2d(*args, **kwargs).to(torch.float32)

    def undo() -> None:
        functional.linear, functional.conv2d = linear, conv2d

    functional.linear, functional.conv2d = low_linear, low_conv2d
    return undo


_LOW_PRODUCTS = SharedChange(_lower_products)
