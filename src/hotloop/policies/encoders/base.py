"""The base class of all encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Encoder(ABC):
    """A function of parameters and observations that gives F features.

    The policy and the value share it; so do critics. Nothing outside its methods imports torch.

    Attributes:
        num_features: F.
        acts_without_torch: whether its features are the observation's own numbers in order. Then
            the torch-free twin acts; else `features` does.
    """

    num_features: int
    acts_without_torch = False

    @abstractmethod
    def __init__(self, obs_spec: ObsSpec) -> None:
        """Raise `SpaceError` where it can't encode such observations."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order; all names begin with `encoder.`."""
        return {}

    def initial_parameters(self, generator: np.random.Generator) -> dict[str, Array]:
        """Return float32 arrays by name, drawn from `generator`."""
        return {}

    @abstractmethod
    def features(self, params: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Return float32, (B, F).

        Args:
            params: by name; those of the whole network.
            obs: (B, *obs_shape), float32, or uint8 where the environment gives bytes.
        """
