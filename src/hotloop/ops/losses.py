"""Losses of policy-gradient methods, as pure torch functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return E[x], or E[w x] for weights that are 1 on average.

    Args:
        values: float32, (B,).
        weight: float32, (B,). None for weights of 1.

    Returns:
        0-d.
    """
    return values.mean() if weight is None else (weight * values).mean()


def moments(values: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weighted mean and standard deviation.

    Args:
        values: float32, (B,), at least two.
        weight: float32, (B,). None for equal weights.

    Returns:
        0-d each. The standard deviation has Bessel's correction.
    """
    if weight is None:
        return values.mean(), values.std()
    total = weight.sum()
    average = (weight * values).sum() / total
    size = values.shape[0]
    variance = (weight * (values - average).square()).sum() / total * (size / (size - 1))
    return average, variance.sqrt()


def clipped_policy_loss(
    ratio: Tensor, advantages: Tensor, clip_range: Any, weight: Tensor | None = None
) -> Tensor:
    """Return the negative clipped surrogate objective of PPO.

    L = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)],   ρ = π(a|s) / π_old(a|s)

    Schulman et al. 2017, arXiv:1707.06347, eq. 7.

    Args:
        ratio: ρ, float32, (B,).
        advantages: A, float32, (B,).
        clip_range: ε, 0-d, or a float.
        weight: Sample weights, float32, (B,). None for weights of 1.

    Returns:
        0-d.
    """
    clipped = torch.clamp(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -mean(torch.minimum(ratio * advantages, clipped * advantages), weight)


def value_loss(value: Tensor, returns: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean squared error E[(V − R)²]: Schulman et al. 2017, arXiv:1707.06347, eq. 9.

    Args:
        value: V, float32, (B,).
        returns: R, float32, (B,).
        weight: Sample weights, float32, (B,). None for weights of 1.

    Returns:
        0-d.
    """
    return mean((value - returns).square(), weight)


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    clip_range: Any,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the mean of the larger squared error, with and without clipping V's change.

    L = E[max((V − R)², (V_old + clip(V − V_old, −ε, ε) − R)²)]

    Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization", the detail
    "value function loss clipping".

    Args:
        value: V, float32, (B,).
        old_value: V_old, float32, (B,), at collection.
        returns: R, float32, (B,).
        clip_range: ε, 0-d, or a float.
        weight: Sample weights, float32, (B,). None for weights of 1.

    Returns:
        0-d.
    """
    clipped = old_value + torch.clamp(value - old_value, -clip_range, clip_range)
    worse = torch.maximum((value - returns).square(), (clipped - returns).square())
    return mean(worse, weight)


def approximate_kl(log_ratio: Tensor, weight: Tensor | None = None) -> Tensor:
    """Estimate KL(π_old ‖ π) from samples of π_old by E[(ρ − 1) − log ρ], which is never negative.

    Schulman 2020, "Approximating KL Divergence", the estimator k3.

    Args:
        log_ratio: log ρ = log π(a|s) − log π_old(a|s), float32, (B,).
        weight: Sample weights, float32, (B,). None for weights of 1.

    Returns:
        0-d.
    """
    return mean(torch.expm1(log_ratio) - log_ratio, weight)
