"""Parameters of a target network."""

from __future__ import annotations

from torch import Tensor


def move_towards(target: Tensor, params: Tensor, tau: Tensor | float) -> None:
    """Let a target network's parameters follow, in place: θ' ← (1 − τ) θ' + τ θ.

    Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1; τ = 1 copies.

    Args:
        target: θ', (P,).
        params: θ, (P,).
        tau: τ, 0-d.
    """
    target.lerp_(params, tau)
