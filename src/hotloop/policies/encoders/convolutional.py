"""Sequential convolutions: the networks of DQN's Nature paper and Sample Factory's Doom agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError
from hotloop.policies.encoders.base import Encoder, Operations
from hotloop.policies.encoders.images import ImageFormat

if TYPE_CHECKING:
    from torch import Tensor


class Convolution(NamedTuple):
    """A convolution: `channels` kernels of size `kernel` × `kernel` with a stride."""

    channels: int
    kernel: int
    stride: int


class Convolutional(Encoder):
    """Convolutions and a linear layer, each followed by an activation.

    With `layer_norm`, the linear layer is normalized before its activation: Ba et al. 2016,
    arXiv:1607.06450.
    """

    name: ClassVar[str]
    layers: ClassVar[tuple[Convolution, ...]]
    width: ClassVar[int] = 512

    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        self._images = ImageFormat(obs_spec)
        self._prefix, self._has_norm = prefix, layer_norm
        self.num_features = self.width
        height, width = self._images.height, self._images.width
        inputs, self.num_products = self._images.num_channels, 0
        for layer in self.layers:
            height = (height - layer.kernel) // layer.stride + 1
            width = (width - layer.kernel) // layer.stride + 1
            self.num_products += height * width * layer.kernel**2 * inputs * layer.channels
            inputs = layer.channels
        if min(height, width) < 1:
            raise SpaceError(
                f"images must be at least {self.min_side()}×{self.min_side()} for `network` "
                f"'{self.name}', got {self._images.height}×{self._images.width}: choose 'impala', "
                "which takes any size, or enlarge them"
            )
        self._num_flat = height * width * inputs
        self.num_products += self._num_flat * self.width

    @classmethod
    def min_side(cls) -> int:
        """Return the side of the smallest image, in pixels."""
        side = 1
        for layer in reversed(cls.layers):
            side = (side - 1) * layer.stride + layer.kernel
        return side

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes. The weight of a convolution is (k · k · C, H), rows of pixels first."""
        shapes: dict[str, tuple[int, ...]] = {}
        inputs = self._images.num_channels
        for k, layer in enumerate(self.layers):
            name = f"{self._prefix}.{k}"
            shapes[f"{name}.weight"] = (layer.kernel * layer.kernel * inputs, layer.channels)
            shapes[f"{name}.bias"] = (layer.channels,)
            inputs = layer.channels
        name = f"{self._prefix}.{len(self.layers)}"
        shapes[f"{name}.weight"] = (self._num_flat, self.width)
        shapes[f"{name}.bias"] = (self.width,)
        return shapes | (norm_shapes(name, self.width) if self._has_norm else {})

    def activation(self, x: Tensor) -> Tensor:
        """Return the activation of a layer's outputs."""
        return x.relu()

    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        x = self._images.tensor(obs)
        for k, layer in enumerate(self.layers):
            name = f"{self._prefix}.{k}"
            weight = to_kernels(params[f"{name}.weight"], layer.kernel)
            x = operations.convolve(x, weight, params[f"{name}.bias"], layer.stride, 0)
            x = self.activation(x)
        name = f"{self._prefix}.{len(self.layers)}"
        x = operations.linear(to_rows(x), params[f"{name}.weight"], params[f"{name}.bias"])
        return self.activation(normalize_rows(x, params, name) if self._has_norm else x)


class Nature(Convolutional):
    """Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518."""

    name = "nature"
    layers = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))


class VizDoom(Convolutional):
    """Petrenko et al. 2020, "Sample Factory", arXiv:2006.11751: their network for Doom."""

    name = "vizdoom"
    layers = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(128, 3, 2))

    def activation(self, x: Tensor) -> Tensor:
        from torch.nn.functional import elu

        return elu(x)


def to_kernels(weight: Tensor, size: int) -> Tensor:
    """Return a weight, (k · k · C, H), as (H, C, k, k)."""
    return weight.view(size, size, -1, weight.shape[-1]).permute(3, 2, 0, 1)


def to_rows(images: Tensor) -> Tensor:
    """Return (B, C, H, W) in channels-last format as (B, H · W · C), without a copy."""
    return images.permute(0, 2, 3, 1).flatten(1)


def norm_shapes(layer: str, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer norm's parameters."""
    return {f"{layer}.scale": (width,), f"{layer}.shift": (width,)}


def normalize_rows(x: Tensor, params: Mapping[str, Tensor], layer: str) -> Tensor:
    """Return the layer norm of x, (B, H), with the layer's scale and shift."""
    from torch.nn.functional import layer_norm

    x = layer_norm(x, x.shape[-1:])
    return x * params[f"{layer}.scale"] + params[f"{layer}.shift"]
