"""Snapshots of a policy: all that acting needs, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.types import Array


@dataclass(frozen=True, eq=False)
class ObsScale:
    """How observations are scaled before a network sees them: clip((obs − mean) / std, −c, c).

    Attributes:
        mean: float32, obs_shape.
        std: float32, obs_shape, positive.
        clip: c, positive.

    Raises:
        ShapeError: `mean` and `std` are no float32 arrays of one shape.
        ConfigError: `std` or `clip` is not positive.
    """

    mean: Array
    std: Array
    clip: float

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or {self.mean.dtype, self.std.dtype} != {
            np.dtype(np.float32)
        }:
            raise ShapeError(
                "`mean` and `std` must be float32 of the observation's shape, got "
                f"{self.mean.dtype} {self.mean.shape} and {self.std.dtype} {self.std.shape}"
            )
        if not (self.std > 0).all() or not self.clip > 0:
            raise ConfigError("`std` and `clip` must be positive: add a small ε to the variance")

    def apply(self, obs: Array, out: Array | None = None) -> Array:
        """Scale observations.

        Args:
            obs: (…, *obs_shape), any leading axes, any dtype of numbers.
            out: float32, the same shape, written in place and returned; may be `obs` itself.

        Returns:
            float32, (…, *obs_shape).
        """
        # The dtype makes float64 observations float32 first, as a network would.
        out = np.subtract(obs, self.mean, out=out, dtype=np.float32, casting="same_kind")
        np.divide(out, self.std, out=out)
        return out.clip(-self.clip, self.clip, out)  # np.clip costs 1 µs more

    def tiled(self, num_rows: int) -> ObsScale:
        """The same for batches of one size, (B, *obs_shape): nothing is left to broadcast.

        Saves 1.3 of 4 µs for 8 observations of 4 numbers.
        """
        shape = (num_rows, *self.mean.shape)
        mean, std = (np.broadcast_to(array, shape).copy() for array in (self.mean, self.std))
        return ObsScale(mean, std, self.clip)


@dataclass(frozen=True)
class PolicySnapshot:
    """A published policy: what acting needs, and nothing that learns.

    Attributes:
        version: number of iterations that the learner had done, from 0.
        params: float32 arrays by name, as the network's `parameter_shapes` lists them.
        obs_scale: how observations are scaled first; None: not at all.
    """

    version: int
    params: dict[str, Array] = field(repr=False)
    obs_scale: ObsScale | None = field(default=None, repr=False)
