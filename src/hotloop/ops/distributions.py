"""Log-probabilities and entropies of the policies' distributions, as torch functions.

The torch-free twins that act stand in `hotloop.policies.heads`; they are tested equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hotloop.ops.activations import tanh

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


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from a diagonal Gaussian, through tanh, and the draw's log-density.

    u = tanh(μ + σ ε),   log π(u) = log N(ε) − Σ log σ − Σ log(1 − u²)

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C, eq. 26; the last term as
    2 (log 2 − x − softplus(−2 x)), x being what goes into tanh, which does not lose its digits
    where u is close to ±1.

    Args:
        mean: μ, float32, (B, A).
        log_std: log σ, float32, (B, A).
        noise: ε, standard normal, (B, A).

    Returns:
        u, (B, A), and log π(u), (B,).
    """
    before = mean + log_std.exp() * noise
    unit = tanh(before)
    log_slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
    per_dimension = 0.5 * noise.square() + log_std + LOG_SQRT_2PI + log_slope
    return unit, -per_dimension.sum(-1)
