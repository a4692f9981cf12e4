"""Noisy layers: linear layers with learned noise on their parameters, for exploration.

Fortunato et al. 2018, "Noisy Networks for Exploration", arXiv:1706.10295, with factorised noise:

    w = μ + σ ⊙ f(ε) f(ε')ᵀ,   b = μ' + σ' ⊙ f(ε'),   f(x) = sgn(x) √|x|

for a layer of p inputs and q outputs, with standard normal ε, (p,), and ε', (q,). A layer's
parameters `weight` and `bias` are the means μ, beside `weight_std` and `bias_std`. One more
parameter, `noise`, holds ε and ε' of all layers for acting. It is drawn and not learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hotloop.ops.arrays import namespace
from hotloop.types import Array

Shapes = Mapping[str, tuple[int, ...]]

NOISE = "noise"
_PARTS = ("policy.", "value.", "advantage.")  # layers after the encoder and the recurrent layer


def noisy_shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parameters by name, with those of the noise, `noise` last."""
    noisy = {
        f"{layer}.{part}_std": shapes[f"{layer}.{part}"]
        for layer, _ in _layers(shapes)
        for part in ("weight", "bias")
    }
    return {**shapes, **noisy, NOISE: (sum(sum(shape) for _, shape in _layers(shapes)),)}


def initial_noise(shapes: Shapes, std: float) -> dict[str, Array]:
    """Return initial σ = σ₀ / √p, for factorised noise, and a `noise` of 0, by name: float32.

    Args:
        shapes: shapes of the parameters without noise, by name.
        std: σ₀.
    """
    values: dict[str, Array] = {}
    for name, shape in noisy_shapes(shapes).items():
        if name not in shapes:
            weight = f"{name.rpartition('.')[0]}.weight"
            value = 0.0 if name == NOISE else std / math.sqrt(shapes[weight][0])
            values[name] = np.full(shape, value, np.float32)
    return values


def apply_noise(params: Mapping[str, Any], noise: Any) -> dict[str, Any]:
    """Return the parameters of plain layers, arrays or tensors by name.

    Args:
        params: parameters with the shapes of `noisy_shapes`.
        noise: ε and ε' of all layers, (K,). None: the means.
    """
    plain = {name: x for name, x in params.items() if name != NOISE and name[-4:] != "_std"}
    if noise is None:
        return plain
    xp = namespace(noise)
    factors = xp.sign(noise) * xp.sqrt(xp.abs(noise))
    start = 0
    for layer, (num_inputs, num_outputs) in list(_layers(_shapes(plain))):
        middle, end = start + num_inputs, start + num_inputs + num_outputs
        inputs, outputs = factors[start:middle], factors[middle:end]
        weight, bias, start = f"{layer}.weight", f"{layer}.bias", end
        plain[weight] = plain[weight] + params[f"{weight}_std"] * (inputs[:, None] * outputs)
        plain[bias] = plain[bias] + params[f"{bias}_std"] * outputs
    return plain


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in params.items()}


def _layers(shapes: Shapes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name, p and q of each noisy layer."""
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and name.startswith(_PARTS):
            num_inputs, num_outputs = shape
            yield layer, (num_inputs, num_outputs)
