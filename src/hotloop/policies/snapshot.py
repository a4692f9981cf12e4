"""Snapshots of a policy: plain arrays with everything that acting needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.ops.scaling import scale_obs
from hotloop.types import Array


@dataclass(frozen=True, eq=False)
class ObsScale:
    """The scaling of a network's observations: clip((obs − mean) / std, −c, c).

    Attributes:
        mean: float32, obs_shape.
        std: float32, obs_shape, positive.
        clip: c, positive.

    Raises:
        ShapeError: `mean` and `std` are not float32 arrays of the same shape.
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
        """Return scaled observations, see `ops.scaling.scale_obs`."""
        return scale_obs(obs, self.mean, self.std, self.clip, out)


@dataclass(frozen=True)
class PolicySnapshot:
    """A published policy: everything that acting needs, without the state of learning.

    Attributes:
        version: number of completed iterations of the learner, from 0.
        params: float32 arrays by name, see the network's `parameter_shapes`.
        obs_scale: scale of the observations; None: no scaling.
    """

    version: int
    params: dict[str, Array] = field(repr=False)
    obs_scale: ObsScale | None = field(default=None, repr=False)


def unusable_array(arrays: Mapping[str, Array]) -> str:
    """Return the name of an array whose numbers would make all actions meaningless, or "".

    Args:
        arrays: parameters by name, and the fields of an `ObsScale` as `obs_scale.FIELD`.
    """
    for name, array in arrays.items():
        if name.startswith("obs_scale."):  # observations may be huge, and without a bound
            is_usable = name == "obs_scale.clip" or np.isfinite(array).all()
        else:
            with np.errstate(over="ignore"):  # the outputs of huge weights are infinite
                is_usable = np.isfinite(np.square(array)).all()
        if not is_usable:
            return name
    return ""
