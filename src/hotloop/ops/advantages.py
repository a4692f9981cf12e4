"""Advantages of rollouts."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.types import Array


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Compute generalized advantage estimates.

    A_t = δ_t + γ λ (1 − ended_t) A_{t+1},   δ_t = r_t + γ (1 − terminated_t) V(s'_t) − V(s_t)

    Schulman et al. 2016, arXiv:1506.02438, eq. 16 (the sum), where termination stops
    the bootstrap and truncation does not. Both stop the recursion.

    Tensors give a tensor on the same device.

    Args:
        reward: float32, (T, N).
        value: float32, (T, N), V(s_t).
        next_value: float32, (T, N), V of the *true* successor s'_t, even if the episode ended.
        terminated: bool, (T, N).
        truncated: bool, (T, N).
        gamma: discount γ, in [0, 1].
        gae_lambda: λ, in [0, 1].

    Returns:
        Advantages, float32, (T, N). The λ-returns are `advantages + value`.

    Raises:
        ShapeError: arrays are not (T, N) with T ≥ 1, their shapes differ, or flags are not bool.
        ConfigError: γ or λ is not in [0, 1].
    """
    if _is_tensor(reward):
        from hotloop.ops import tensor_advantages

        arrays: Any = (reward, value, next_value, terminated, truncated)
        result: Any = tensor_advantages.gae(*arrays, gamma=gamma, gae_lambda=gae_lambda)
        return result
    reward, value, next_value, terminated, truncated = map(
        np.asarray, (reward, value, next_value, terminated, truncated)
    )
    inputs = {
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
    }
    if reward.ndim != 2 or not len(reward):
        raise ShapeError(f"`reward` must be time-major, (T, N), T ≥ 1, got shape {reward.shape}")
    for name, array in inputs.items():
        if array.shape != reward.shape:
            raise ShapeError(
                f"`{name}` must have the shape of `reward`, {reward.shape}, got {array.shape}: "
                "pass all of them time-major, (T, N)"
            )
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        if flags.dtype != np.bool_:
            # ~1 is −2: integers would silently give wrong advantages.
            raise ShapeError(f"`{name}` must be bool, got {flags.dtype}: `.astype(bool)`")
    for name, factor in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0.0 <= factor <= 1.0:
            raise ConfigError(f"`{name}` must lie in [0, 1], got {factor}")
    delta = reward + np.float32(gamma) * (next_value * ~terminated) - value
    delta = np.ascontiguousarray(delta, dtype=np.float32)
    carry = np.float32(gamma * gae_lambda) * ~(terminated | truncated)
    advantages = np.empty_like(delta)
    advantages[-1] = delta[-1]
    # Two in-place operations take 1 µs per step, the textbook formula takes 6 µs.
    scratch = np.empty_like(delta[0])
    for t in range(len(delta) - 2, -1, -1):
        np.multiply(carry[t], advantages[t + 1], out=scratch)
        np.add(delta[t], scratch, out=advantages[t])
    return advantages


def explained_variance(value: Array, returns: Array) -> float:
    """Return the share of the returns' variance that the values explain: 1 − Var(R − V) / Var(R).

    Args:
        value: V, float32, (B,).
        returns: R, float32, (B,).

    Returns:
        At most 1. A constant prediction gives 0. NaN if all returns are equal.
    """
    if _is_tensor(value):
        from hotloop.ops import tensor_advantages

        tensors: Any = (value, returns)
        return tensor_advantages.explained_variance(*tensors)
    variance = returns.var(dtype=np.float64)
    residual = (returns - value).var(dtype=np.float64)
    return float(1.0 - residual / variance) if variance > 0 else math.nan


def _is_tensor(x: object) -> bool:
    """Return whether `x` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
