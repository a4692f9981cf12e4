"""Log-probabilities and entropies of action distributions, as torch functions.

`hotloop.policies.heads` has the NumPy twins for acting. Tests compare the two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hotloop.ops.activations import tanh

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of an action and the entropy, H = −Σ p log p.

    Args:
        logits: float32, (B, A), unnormalized.
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
    """Return the summed log-probabilities and entropies of independent categoricals.

    Args:
        logits: float32, (B, Σ nvec).
        action: int64, (B, K).
        nvec: The number of choices of each of the K categoricals.

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
    """Return the log-density of an action and the entropy, H = Σ (log σ + ½ log 2πe).

    Args:
        mean: float32, (B, A).
        log_std: float32, (A,), independent of the state.
        action: float32, (B, A).

    Returns:
        log π(action), (B,), and the entropy, (B,).
    """
    standardized = (action - mean) * torch.exp(-log_std)
    log_prob = -(0.5 * standardized.square() + log_std + LOG_SQRT_2PI).sum(-1)
    entropy = (log_std + (0.5 + LOG_SQRT_2PI)).sum(-1).expand(log_prob.shape)
    return log_prob, entropy


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample from a tanh-squashed diagonal Gaussian, and return the sample with its log-density.

    u = tanh(μ + σ ε),   log π(u) = log N(ε) − Σ log σ − Σ log(1 − u²)

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C, eq. 26. The last term is computed as
    2 (log 2 − x − softplus(−2 x)) from the input x of tanh, which stays accurate for u close to ±1.

    Args:
        mean: μ, float32, (B, A).
        log_std: log σ, float32, (B, A).
        noise: ε, standard normal, (B, A).

    Returns:
        u, (B, A), and log π(u), (B,).
    """
    pre_tanh = mean + log_std.exp() * noise
    action = tanh(pre_tanh)
    log_slope = 2.0 * (math.log(2.0) - pre_tanh - softplus(-2.0 * pre_tanh))
    per_dimension = 0.5 * noise.square() + log_std + LOG_SQRT_2PI + log_slope
    return action, -per_dimension.sum(-1)
