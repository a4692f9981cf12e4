"""Gradients of a loss, and gradient clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from hotloop.learner.hyper import Scalar

Aux = TypeVar("Aux")


def value_and_grad(
    loss: Callable[..., tuple[Tensor, Aux]], params: Tensor, *args: Any
) -> tuple[Tensor, Aux, Tensor]:
    """Return a loss and its gradient with respect to the parameters.

    It uses `torch.autograd.grad`, except under Dynamo or `vmap` over lanes, which support only
    `torch.func`. Eager `torch.func` is slower (2.4 ms a step, not 1.6) and imports Dynamo.

    Args:
        loss: `loss(params, *args)` returns a 0-d tensor and auxiliary results.
        params: (P,), not changed.
        *args: further arguments of the loss.

    Returns:
        The loss, detached; the auxiliary results; the gradient, (P,).
    """
    if is_transformed():
        grad, (value, aux) = torch.func.grad_and_value(loss, has_aux=True)(params, *args)
        return value, aux, grad
    with torch.enable_grad():
        leaf = params.detach().requires_grad_()
        value, aux = loss(leaf, *args)
        (grad,) = torch.autograd.grad(value, leaf)
    return value.detach(), aux, grad


def is_transformed() -> bool:
    """Return whether Dynamo or a transformation of `torch.func`, such as `vmap`, is active."""
    if torch.compiler.is_dynamo_compiling():  # Dynamo can't trace the next line
        return True
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore


def clip_grad_norm(grad: Tensor, max_norm: Scalar) -> tuple[Tensor, Tensor]:
    """Scale a gradient so that its Euclidean norm is at most `max_norm`.

    Args:
        grad: (P,).
        max_norm: the maximum norm.

    Returns:
        The scaled gradient, (P,), and its norm before scaling, 0-d.
    """
    norm = torch.linalg.vector_norm(grad)
    return grad * computed_once(torch.clamp(max_norm / (norm + 1e-6), max=1.0)), norm


def computed_once(scalar: Tensor) -> Tensor:
    """Return a 0-d tensor unchanged, and make a compiler compute it once instead of in every loop.

    A loop over parameters takes 47 µs instead of 9 if it contains two powers, a root and two
    divisions. The compiler can't move them out of the loop, since a write may change their inputs.
    The reduction below stores the value first. It has 16 elements, since shorter ones are unrolled.
    """
    return scalar.expand(16).amax() if torch.compiler.is_compiling() else scalar
