"""Advantages of rollouts on a device: the torch twin of `ops.advantages`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hotloop.errors import ConfigError, ShapeError


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Compute advantages on the device, see `hotloop.ops.gae`.

    Args:
        reward: float32, (T, N).
        value: float32, (T, N), V(s_t).
        next_value: float32, (T, N), V of the *true* successor s'_t, even if the episode ended.
        terminated: bool, (T, N).
        truncated: bool, (T, N).
        gamma: discount γ, in [0, 1].
        gae_lambda: λ, in [0, 1].

    Returns:
        Advantages, float32, (T, N).

    Raises:
        ShapeError: tensors are not (T, N) with T ≥ 1, their shapes differ, or flags are not bool.
        ConfigError: γ or λ is not in [0, 1].
    """
    if reward.ndim != 2 or not len(reward):
        raise ShapeError(
            f"`reward` must be time-major, (T, N), T ≥ 1, got shape {tuple(reward.shape)}"
        )
    inputs = {"value": value, "next_value": next_value}
    flags = {"terminated": terminated, "truncated": truncated}
    for name, tensor in {**inputs, **flags}.items():
        if tensor.shape != reward.shape:
            raise ShapeError(
                f"`{name}` must have the shape of `reward`, {tuple(reward.shape)}, got "
                f"{tuple(tensor.shape)}: pass all of them time-major, (T, N)"
            )
    for name, tensor in flags.items():
        if tensor.dtype != torch.bool:
            raise ShapeError(f"`{name}` must be bool, got {tensor.dtype}: `.bool()`")
    for name, factor in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0.0 <= factor <= 1.0:
            raise ConfigError(f"`{name}` must lie in [0, 1], got {factor}")
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    carry = (gamma * gae_lambda) * (~(terminated | truncated)).to(torch.float32)
    advantages = torch.empty_like(delta)
    advantages[-1] = delta[-1]
    # One kernel launch per step.
    for t in range(len(delta) - 2, -1, -1):
        torch.addcmul(delta[t], carry[t], advantages[t + 1], out=advantages[t])
    return advantages


def explained_variance(value: Tensor, returns: Tensor) -> float:
    """Return the share of the variance that values explain, see `ops.explained_variance`."""
    parts = [x.double().var(correction=0) for x in (returns, returns - value)]
    variance, residual = torch.stack(parts).tolist()
    return 1.0 - residual / variance if variance > 0 else math.nan
