"""Adam as a function that changes flat tensors in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotloop.learner.gradients import computed_once, is_transformed
from hotloop.learner.hyper import Scalar


@dataclass(slots=True)
class AdamState:
    """The state of Adam.

    Attributes:
        mean: first moments m, float32, (P,).
        square: second moments v, float32, (P,).
        step: number of steps, float32, 0-d, on the device of the parameters.
    """

    mean: Tensor
    square: Tensor
    step: Tensor

    @classmethod
    def zeros(cls, params: Tensor) -> AdamState:
        """Return the state before the first step."""
        return cls(
            mean=torch.zeros_like(params),
            square=torch.zeros_like(params),
            step=torch.zeros((), dtype=torch.float32, device=params.device),
        )


def adam_step(
    params: Tensor,
    grad: Tensor,
    state: AdamState,
    *,
    learning_rate: Scalar,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    active: Tensor | None = None,
    scale: Tensor | None = None,
) -> None:
    """Make one step of Adam in place.

    θ ← θ − α m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.

    Args:
        params: θ, (P,).
        grad: (P,).
        state: moments and step.
        learning_rate: α, 0-d.
        beta1: β₁.
        beta2: β₂.
        eps: ε.
        active: bool, 0-d. If False, nothing changes. The value stays on the device, without
            synchronization.
        scale: factor of each parameter's change, (P,). None: 1.
    """
    if active is None and is_transformed():
        # Make the same step with operations that `vmap` supports.
        state.step.add_(1.0)
        state.mean.add_((grad - state.mean) * (1.0 - beta1))
        state.square.mul_(beta2).add_(grad * grad * (1.0 - beta2))
    elif active is None:
        state.step.add_(1.0)
        state.mean.lerp_(grad, 1.0 - beta1)
        state.square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    else:
        active_float = active.to(torch.float32)
        # `where`, not a product with 0, since a NaN gradient must not reach the moments.
        grad = torch.where(active, grad, 0.0)
        state.step.add_(active_float)
        state.mean.add_((grad - state.mean) * (active_float * (1.0 - beta1)))
        state.square.add_((grad * grad - state.square) * (active_float * (1.0 - beta2)))
    # Combine both corrections into two scalars: one division over the vector instead of three.
    root = (1.0 - beta2**state.step).sqrt()
    rate = computed_once(learning_rate * root / (1.0 - beta1**state.step))
    change = rate * state.mean / (state.square.sqrt() + computed_once(eps * root))
    if scale is not None:
        change = change * scale
    params.sub_(change if active is None else torch.where(active, change, 0.0))
