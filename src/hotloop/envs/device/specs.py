"""Constructors of observation and action specs for device environments, and of their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsField, ObsSpec
from hotloop.errors import MissingExtraError


def box_observations(*shape: int) -> ObsSpec:
    """Return the spec of observations that are one float32 array."""
    part = ObsField(
        name="", start=0, stop=math.prod(shape), shape=shape, encoding="box", raw_shape=shape
    )
    return ObsSpec(shape=shape, dtype="float32", layout=(part,))


def discrete_actions(count: int) -> ActionSpec:
    """Return the spec of actions 0 … count − 1."""
    return ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=count)


def box_actions(low: Any, high: Any, shape: tuple[int, ...]) -> ActionSpec:
    """Return the spec of continuous actions. The bounds are broadcast to `shape`."""
    low, high = (np.broadcast_to(np.asarray(x, np.float32), shape).ravel() for x in (low, high))
    return ActionSpec(
        kind="box",
        shape=shape,
        dtype="float32",
        low=tuple(map(float, low)),
        high=tuple(map(float, high)),
    )


def missing_library(env: str, error: ImportError, packages: str) -> MissingExtraError:
    """Return the error for a library of environments that cannot be imported.

    Args:
        env: id of the environment that needs the library.
        error: exception of the import.
        packages: packages to install.
    """
    return MissingExtraError(
        f"environments such as '{env}' need a library that cannot be imported ({error}): "
        f"pip install {packages}"
    )
