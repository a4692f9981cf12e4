"""Soft updates of target networks."""

from __future__ import annotations

import torch
from torch import Tensor

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
