"""The base class of all encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec

if TYPE_CHECKING:
    from torch import Tensor

    from hotloop.policies.operations import Operations


class Encoder(ABC):
    """A function of parameters and observations that gives F features.

    The policy and the value share it; so do critics. Nothing outside its methods imports torch.

    Args:
        obs_spec: what is observed.
        prefix: of its parameters' names.
        layer_norm: normalise its layers.

    Attributes:
        num_features: F.
        num_products: multiplications of an observation with parameters.
        acts_without_torch: whether its features are the observation's own numbers in order. Then
            the torch-free twin acts; else `features` does.
    """

    num_features: int
    num_products = 0
    acts_without_torch = False

    @abstractmethod
    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        """Raise `SpaceError` where it can't encode such observations."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order; all names begin with `prefix` and a dot.

        Weights are `<layer>.weight`, (inputs, outputs), and come before their `<layer>.bias`; what
        is called `<layer>.scale` starts at 1, and all else at 0.
        """
        return {}

    @abstractmethod
    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        """Return float32, (B, F).

        Args:
            params: by name; those of the whole network.
            obs: (B, *obs_shape), float32, or uint8 where the environment gives bytes.
            operations: to be made of, so that they are as fast and as exact as is asked for.
        """
