"""Log-probabilities and entropies of the policies' distributions, as torch functions.

The torch-free twins that act stand in `hotloop.policies.acting`; they are tested equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of an action and the entropy, H = −Σ p log p.

    Args:
        logits: float32, (B, A), not normalised.
        action: int64, (B,).

    Returns:
        log π(action), (B,), and the entropy, (B,).
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_prob, entropy


def multi_categorical(
    logits: Tensor, action: Tensor, nvec: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Independent categoricals side by side: log-probabilities and entropies add up.

    Args:
        logits: float32, (B, Σ nvec).
        action: int64, (B, K).
        nvec: numbers of choices, K of them.

    Returns:
        log π(action), (B,), and the entropy, (B,).
    """
    parts = [
        categorical(part, choice)
        for part, choice in zip(logits.split(nvec, dim=-1), action.unbind(-1), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def diagonal_gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of an action and the entropy, H = Σ (log σ + ½ log 2πe).

    Args:
        mean: float32, (B, A).
        log_std: float32, (A,), the same in every state.
        action: float32, (B, A).

    Returns:
        log π(action), (B,), and the entropy, (B,).
    """
    standardised = (action - mean) * torch.exp(-log_std)
    log_prob = -(0.5 * standardised.square() + log_std + LOG_SQRT_2PI).sum(-1)
    entropy = (log_std + (0.5 + LOG_SQRT_2PI)).sum(-1).expand(log_prob.shape)
    return log_prob, entropy
