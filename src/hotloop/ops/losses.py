"""Losses of policy-gradient methods, as pure torch functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Minimum sum of weights: a minibatch of sequences may have no row that is a transition.
_MIN_TOTAL = 1e-6


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
        0-d each. The standard deviation has Bessel's correction. Both are 0 if all weights are.
    """
    if weight is None:
        return values.mean(), values.std()
    total = weight.sum().clamp(min=_MIN_TOTAL)
    average = (weight * values).sum() / total
    size = values.shape[0]
    variance = (weight * (values - average).square()).sum() / total * (size / (size - 1))
    return average, variance.sqrt()


def normalized(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return values scaled to weighted mean 0 and standard deviation 1, see `moments`, (B,)."""
    average, std = moments(values, weight)
    return (values - average) / (std + 1e-8)


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


def value_loss(
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    weight: Tensor | None = None,
    *,
    clip_range: Any = None,
    unit: Tensor | None = None,
) -> Tensor:
    """Return the mean squared error of values in units of σ, with or without clipping V's change.

    L = E[(V − R)²] / σ²: Schulman et al. 2017, arXiv:1707.06347, eq. 9. Clipped, for σ = 1:
    L = E[max((V − R)², (V_old + clip(V − V_old, −ε, ε) − R)²)], Huang et al. 2022, "The 37
    Implementation Details of Proximal Policy Optimization", the detail "value function loss
    clipping".

    Args:
        value: V, float32, (B,).
        old_value: V_old, float32, (B,), at collection.
        returns: R, float32, (B,).
        weight: Sample weights, float32, (B,). None for weights of 1.
        clip_range: ε in units of σ, 0-d, or a float. None: V may change by any amount.
        unit: σ, 0-d. None: 1.

    Returns:
        0-d.
    """
    if unit is not None:
        value, old_value, returns = value / unit, old_value / unit, returns / unit
    error = (value - returns).square()
    if clip_range is not None:
        clipped = old_value + torch.clamp(value - old_value, -clip_range, clip_range)
        error = torch.maximum(error, (clipped - returns).square())
    return mean(error, weight)


def clip_fraction(ratio: Tensor, clip_range: Any, weight: Tensor | None = None) -> Tensor:
    """Return the share of rows with |ρ − 1| > ε, 0-d. See `clipped_policy_loss`."""
    return mean(((ratio - 1.0).abs() > clip_range).to(torch.float32), weight)


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
