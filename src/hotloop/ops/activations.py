"""Activations that compile to plain vector arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# tanh(x) ≈ x P(x²) / Q(x²) for |x| ≤ 9, beyond which tanh is 1 in float32. This is the best fit of
# these degrees, with a relative error of 2.1e-8. `python -m bench tanh` computes the coefficients.
_BOUND = 9.0
_P = (
    0.9999999794476975,
    0.13381024063054509,
    0.0034955862925286716,
    2.0609053289267427e-05,
    1.3354623017076123e-08,
)
_Q = (
    1.0,
    0.46714339653276804,
    0.025876975126677214,
    0.00032856318715473407,
    7.776542205063558e-07,
)


def tanh(x: Tensor) -> Tensor:
    """Return tanh(x), within 4e-7 of `torch.tanh`.

    When compiled, it is a ratio of two polynomials that fuses with the surrounding operations. It
    takes 0.5 ns per element on one AVX2 core. Torch's tanh takes 4 ns, a third of a PPO update.

    Args:
        x: float32, any shape.

    Returns:
        The same shape.
    """
    return rational_tanh(x) if torch.compiler.is_compiling() else torch.tanh(x)


def rational_tanh(x: Tensor) -> Tensor:
    """Return x P(x²) / Q(x²), with 1 − tanh² as its derivative."""
    return _RationalTanh.apply(x)  # pyright: ignore[reportReturnType]


class _RationalTanh(torch.autograd.Function):
    """Compute the derivative from the value, at a third of the cost of the ratio's derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        clamped = x.clamp(-_BOUND, _BOUND)
        square = clamped * clamped
        return clamped * _polynomial(_P, square) / _polynomial(_Q, square)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        return grad_outputs[0] * (1.0 - value * value)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result
