"""Parameters as flat vectors: soft updates of target networks, and modules of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hotloop.learner.gradients import is_transformed


def move_towards(target: Tensor, params: Tensor, tau: Tensor | float) -> None:
    """Make a soft update of a target network in place: θ' ← (1 − τ) θ' + τ θ.

    Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1. With τ = 1 it copies.

    Args:
        target: θ', (P,).
        params: θ, (P,).
        tau: τ, 0-d.
    """
    if not is_transformed():
        target.lerp_(params, tau)
        return
    # Make the same update with operations that `vmap` supports.
    tau, delta = torch.as_tensor(tau), params - target
    target.copy_(torch.where(tau < 0.5, target + tau * delta, params - delta * (1.0 - tau)))


def flatten_parameters(module: nn.Module) -> Tensor:
    """Return a module's parameters as one vector, (P,), of which they become views.

    An update that changes the vector in place changes the module. Optimizers of the module remain
    valid.
    """
    params = parameters_to_vector(module.parameters()).detach()
    vector_to_parameters(params, module.parameters())
    return params


def call_with(module: nn.Module, params: Tensor, *args: Any) -> Any:
    """Return `module(*args)` with other parameters. Gradients flow back to them.

    Args:
        module: the module, not changed.
        params: (P,), in the order of `flatten_parameters`.
        *args: arguments of its `forward`.
    """
    named = dict(module.named_parameters())
    # One `split` has one backward operation. Slices have one each, of P elements.
    parts = params.split([x.numel() for x in named.values()])
    views = {name: part.view_as(x) for (name, x), part in zip(named.items(), parts, strict=True)}
    return torch.func.functional_call(module, views, args)
