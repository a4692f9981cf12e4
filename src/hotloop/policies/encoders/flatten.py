"""Observations as they are, in one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Flatten:
    """All numbers of an observation, as float32; see `Encoder`."""

    acts_without_torch = True

    def __init__(self, obs_spec: ObsSpec) -> None:
        if obs_spec.dtype == "uint8" and len(obs_spec.shape) == 3:
            raise SpaceError(
                f"images of shape {obs_spec.shape} need a convolutional network, and these are "
                "perceptrons: give a network of your own (`network`), or choose an environment "
                "that observes features"
            )
        self.num_features = math.prod(obs_spec.shape)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `Encoder`: it has none."""
        return {}

    def initial_parameters(self, generator: np.random.Generator) -> dict[str, Array]:
        """See `Encoder`: it has none."""
        return {}

    def features(self, params: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """See `Encoder`."""
        import torch

        return obs.flatten(1).to(torch.float32)
