"""Observations as they are, in one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError
from hotloop.policies.encoders.base import Encoder

if TYPE_CHECKING:
    from torch import Tensor


class Flatten(Encoder):
    """All numbers of an observation, as float32."""

    acts_without_torch = True

    def __init__(self, obs_spec: ObsSpec) -> None:
        if obs_spec.dtype == "uint8" and len(obs_spec.shape) == 3:
            raise SpaceError(
                f"images of shape {obs_spec.shape} need a convolutional network, and these are "
                "perceptrons: give a network of your own (`network`), or choose an environment "
                "that observes features"
            )
        self.num_features = math.prod(obs_spec.shape)

    def features(self, params: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        import torch

        return obs.flatten(1).to(torch.float32)
