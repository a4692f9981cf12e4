"""Differentiating a loss, and bounding its gradient."""

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
    """A loss and its gradient by the parameters.

    By `torch.autograd.grad`, and by `torch.func` where Dynamo traces it, or `vmap` runs it over
    lanes, which can do no other: that is slower eager (2.4 ms a step, not 1.6), and imports Dynamo.

    Args:
        loss: `loss(params, *args)` gives a 0-d tensor and anything else that is of interest.
        params: (P,); itself left alone.
        *args: passed on.

    Returns:
        The loss, detached; what else it gave; the gradient, (P,).
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
    """Whether a transformation of `torch.func`, such as `vmap`, is at work, or Dynamo traces."""
    if torch.compiler.is_dynamo_compiling():  # which can't ask what follows
        return True
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore


def clip_grad_norm(grad: Tensor, max_norm: Scalar) -> tuple[Tensor, Tensor]:
    """Scale a gradient so that its Euclidean norm is at most `max_norm`.

    Args:
        grad: (P,).
        max_norm: the bound.

    Returns:
        The gradient, (P,), and its norm before, 0-d.
    """
    norm = torch.linalg.vector_norm(grad)
    return grad * computed_once(torch.clamp(max_norm / (norm + 1e-6), max=1.0)), norm


def computed_once(scalar: Tensor) -> Tensor:
    """A 0-d tensor, as it is; compiled, it is computed once and not for each vector that uses it.

    A loop over parameters with two powers, a root and two divisions in it takes 47 µs where it
    should take 9: the compiler can't move them out, since what is written may be what is read. A
    reduction gets a place in memory of its own; over fewer elements it would be unrolled.
    """
    return scalar.expand(16).amax() if torch.compiler.is_compiling() else scalar
