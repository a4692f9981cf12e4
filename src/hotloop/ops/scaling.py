"""Scaling of observations, as arrays or tensors."""

from __future__ import annotations

from typing import Any

from hotloop.ops.arrays import namespace
from hotloop.types import Array


def scale_obs(obs: Any, mean: Any, std: Any, clip: Any, out: Array | None = None) -> Any:
    """Return clip((obs − mean) / std, −c, c) of arrays or tensors.

    Args:
        obs: (…, *obs_shape), any leading axes, any numeric dtype.
        mean: float32, obs_shape.
        std: float32, obs_shape.
        clip: c, a number or a 0-d tensor.
        out: float32 array, the shape of `obs`, written in place and returned. `obs` is allowed.

    Returns:
        float32, (…, *obs_shape).
    """
    xp = namespace(mean)
    # As in a network, observations of float64 become float32 first.
    scaled = xp.subtract(xp.asarray(obs, dtype=xp.float32), mean, out=out)
    scaled = xp.divide(scaled, std, out=out)
    if out is None:
        return scaled.clip(-clip, clip)
    return scaled.clip(-clip, clip, out)  # np.clip costs 1 µs more
