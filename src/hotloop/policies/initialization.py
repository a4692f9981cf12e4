"""Initial values of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hotloop.base.memory import require_memory
from hotloop.types import Array

Shapes = Mapping[str, tuple[int, ...]]


def orthogonal_parameters(
    shapes: Shapes, generator: np.random.Generator, gains: Mapping[str, float]
) -> dict[str, Array]:
    """Return orthogonal weights, scales of 1, and otherwise zeros: float32 arrays by name.

    Args:
        shapes: shapes by name. Weights are `<layer>.weight`, (inputs, outputs).
        generator: source of the random numbers.
        gains: gains by name of the weight; default: √2.

    Raises:
        ConfigError: the parameters don't fit into memory.
    """
    _need_parameters(shapes, 24)  # a float64 matrix, its Q and its R
    params: dict[str, Array] = {}
    for name, shape in shapes.items():
        if name.endswith("weight"):
            gain = gains.get(name, math.sqrt(2.0))
            params[name] = (gain * orthogonal(shape, generator)).astype(np.float32, order="C")
        else:
            params[name] = np.full(shape, 1.0 if name.endswith(".scale") else 0.0, np.float32)
    return params


def uniform_parameters(shapes: Shapes, generator: np.random.Generator) -> dict[str, Array]:
    """Return layers with uniform values in ±1/√inputs, as in `torch.nn.Linear`.

    Args:
        shapes: shapes by name: `<layer>.weight`, (…, inputs, outputs), each before its
            `<layer>.bias`. Other parameters are 1 if they are a `.scale`, else 0.
        generator: source of the random numbers.

    Returns:
        float32 arrays by name.

    Raises:
        ConfigError: the parameters don't fit into memory.
    """
    _need_parameters(shapes, 8)  # a float64 matrix
    params: dict[str, Array] = {}
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(".")
        if part in ("weight", "bias"):
            bound = 1.0 / math.sqrt(shapes[f"{layer}.weight"][-2])
            params[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
        else:
            params[name] = np.full(shape, 1.0 if part == "scale" else 0.0, np.float32)
    return params


def orthogonal(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return a uniformly distributed matrix with orthonormal rows or columns: float64, `shape`.

    Saxe et al. 2014, arXiv:1312.6120: the Q of a Gaussian matrix, signs fixed by R's diagonal.

    Args:
        shape: (inputs, outputs).
        generator: source of the random numbers.
    """
    inputs, outputs = shape
    gaussian = generator.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(gaussian)
    q = q * np.sign(np.diag(r))
    return q if inputs >= outputs else q.T


def _need_parameters(shapes: Shapes, element_bytes: int) -> None:
    """Raise ConfigError if memory is too small for drawing and packing the parameters."""
    # `element_bytes` is the memory for initializing each element of the largest parameter.
    sizes = [math.prod(shape) for shape in shapes.values()]
    require_memory(
        8 * sum(sizes) + element_bytes * max(sizes, default=0),
        f"networks of {sum(sizes):,} parameters",
        "lower `hidden_sizes`" + (", or `memory`" if "memory.bias" in shapes else ""),
    )
