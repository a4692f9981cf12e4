"""An encoder that flattens each observation into one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec, is_image_shape
from hotloop.errors import ConfigError, SpaceError
from hotloop.policies.encoders.base import Encoder

if TYPE_CHECKING:
    from torch import Tensor

    from hotloop.policies.operations import Operations


class Flatten(Encoder):
    """All numbers of an observation as float32."""

    acts_without_torch = True

    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        if obs_spec.dtype == "uint8" and is_image_shape(obs_spec.shape):
            raise SpaceError(
                f"images of shape {obs_spec.shape} need convolutions, but perceptrons have none: "
                "choose `network` 'nature' or 'impala', or a network of your own"
            )
        if layer_norm:
            raise ConfigError(
                "`layer_norm` is for encoders of images, but these observations have none: leave "
                "it out"
            )
        self.num_features = math.prod(obs_spec.shape)

    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        import torch

        return obs.flatten(1).to(torch.float32)
