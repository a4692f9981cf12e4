"""The base class of all encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hotloop.envs.spaces import ObsSpec

if TYPE_CHECKING:
    from torch import Tensor


class Operations(NamedTuple):
    """The operations of layers, with different versions for learning, acting and export.

    Attributes:
        linear: maps inputs, (B, D), a weight, (D, H), and a bias, (H,), to (B, H).
        convolve: maps inputs, (B, C, height, width), a kernel, (H, C, k, k), a bias, (H,), a stride
            and a padding to (B, H, …, …).
        tanh: the hyperbolic tangent.
    """

    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    tanh: Callable[[Tensor], Tensor]


class Encoder(ABC):
    """A function from parameters and observations to F features.

    Policy and value share one encoder, and so do all critics. Only its methods import torch.

    Args:
        obs_spec: the observations.
        prefix: prefix of the parameters' names.
        layer_norm: whether to normalize its layers.

    Attributes:
        num_features: F.
        num_products: number of multiplications by parameters for one observation.
        acts_without_torch: whether the features are the observation's own numbers in order. NumPy
            then computes the policy, else `features` computes them in torch.
    """

    num_features: int
    num_products = 0
    acts_without_torch = False

    @abstractmethod
    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        """Raise `SpaceError` if it can't encode these observations."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order. All names start with `prefix` and a dot.

        Weights are `<layer>.weight`, (inputs, outputs), each before its `<layer>.bias`. Parameters
        named `<layer>.scale` start at 1, all others at 0.
        """
        return {}

    @abstractmethod
    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        """Return float32, (B, F).

        Args:
            params: parameters of the whole network by name.
            obs: (B, *obs_shape), float32, or uint8 if the observations are bytes.
            operations: layers in the chosen precision, for the encoder to use.
        """
