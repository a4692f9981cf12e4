"""An encoder that flattens each observation into one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError
from hotloop.policies.encoders.base import Encoder, Operations

if TYPE_CHECKING:
    from torch import Tensor


class Flatten(Encoder):
    """All numbers of an observation as float32."""

    acts_without_torch = True

    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        if layer_norm:
            raise ConfigError(
                "`layer_norm` is for encoders of images, and a perceptron has none: leave it out, "
                "or choose `network` 'nature' or 'impala'"
            )
        self.num_features = math.prod(obs_spec.shape)

    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        import torch

        return obs.flatten(1).to(torch.float32)
