"""Advantages of rollouts, as arrays or tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.ops.arrays import backward_sums, namespace
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

    Arrays give an array, and tensors a tensor on their device, without gradients.

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
    xp, arrays = checked_steps(
        {
            "reward": reward,
            "value": value,
            "next_value": next_value,
            "terminated": terminated,
            "truncated": truncated,
        },
        {"gamma": gamma, "gae_lambda": gae_lambda},
    )
    delta, carry = td_errors(xp, *arrays, gamma=gamma, gae_lambda=gae_lambda)
    return backward_sums(delta, carry)


def td_errors(
    xp: Any,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Return δ and γ λ (1 − ended), float32, (T, N), see `gae`. `xp` is NumPy or torch."""
    delta = reward + gamma * xp.where(terminated, 0.0, next_value) - value
    carry = xp.where(terminated | truncated, 0.0, gamma * gae_lambda)
    return xp.asarray(delta, dtype=xp.float32), xp.asarray(carry, dtype=xp.float32)


def checked_steps(
    steps: Mapping[str, Array], factors: Mapping[str, float]
) -> tuple[Any, list[Array]]:
    """Return the array library of time-major arrays or tensors, and the converted arrays.

    Args:
        steps: `reward`, (T, N), then others of its shape by name.
        factors: numbers in [0, 1] by name.

    Raises:
        ShapeError, ConfigError: see `gae`.
    """
    xp = namespace(steps["reward"])
    arrays: dict[str, Any] = {**steps}
    for name, x in arrays.items():
        arrays[name] = xp.asarray(x.detach() if hasattr(x, "detach") else x)
    shape = tuple(arrays["reward"].shape)
    if len(shape) != 2 or not shape[0]:
        raise ShapeError(f"`reward` must be time-major, (T, N), T ≥ 1, got shape {shape}")
    for name, array in arrays.items():
        if tuple(array.shape) != shape:
            raise ShapeError(
                f"`{name}` must have the shape of `reward`, {shape}, got {tuple(array.shape)}: "
                "pass all of them time-major, (T, N)"
            )
        if name in ("terminated", "truncated") and str(array.dtype).split(".")[-1] != "bool":
            # ~1 is −2: integers would silently give wrong advantages.
            raise ShapeError(f"`{name}` must be bool, got {array.dtype}: compare it with 0")
    for name, factor in factors.items():
        if not 0.0 <= factor <= 1.0:
            raise ConfigError(f"`{name}` must lie in [0, 1], got {factor}")
    return xp, list(arrays.values())


def explained_variance(value: Array, returns: Array) -> float:
    """Return the share of the returns' variance that the values explain: 1 − Var(R − V) / Var(R).

    Args:
        value: V, float32, (B,).
        returns: R, float32, (B,).

    Returns:
        At most 1. A constant prediction gives 0. NaN if all returns are equal.
    """
    xp = namespace(value)
    # In float32, the difference of large values would be rounded.
    returns, value = (xp.asarray(x, dtype=xp.float64) for x in (returns, value))
    variances = xp.stack([xp.square(x - x.mean()).mean() for x in (returns, returns - value)])
    variance, residual = variances.tolist()  # the only synchronization with a device
    return 1.0 - residual / variance if variance > 0 else math.nan
