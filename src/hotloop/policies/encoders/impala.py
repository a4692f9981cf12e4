"""Residual convolutions, as in IMPALA's deep network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec
from hotloop.policies.encoders.base import Encoder, Operations
from hotloop.policies.encoders.convolutional import norm_shapes, normalize_rows, to_kernels, to_rows
from hotloop.policies.encoders.images import ImageFormat

if TYPE_CHECKING:
    from torch import Tensor

_CHANNELS = (16, 32, 32)
_BLOCKS = 2
_WIDTH = 256


class Impala(Encoder):
    """Three sections of a convolution, a 3 × 3 max pooling with stride 2, and two residual blocks.

    A block adds two convolutions, each after a ReLU, to its input. The last layer is a linear layer
    of 256 between two ReLUs. Espeholt et al. 2018, arXiv:1802.01561, figure 3, right, without its
    LSTM. With `layer_norm`, the linear layer is normalized.
    """

    def __init__(self, obs_spec: ObsSpec, prefix: str, *, layer_norm: bool = False) -> None:
        self._images = ImageFormat(obs_spec)
        self._prefix, self._has_norm = prefix, layer_norm
        self.num_features = _WIDTH
        height, width = self._images.height, self._images.width
        inputs, self.num_products = self._images.num_channels, 0
        for channels in _CHANNELS:
            self.num_products += 9 * height * width * inputs * channels
            height, width = -(-height // 2), -(-width // 2)
            self.num_products += 2 * _BLOCKS * 9 * height * width * channels**2
            inputs = channels
        self._num_flat = height * width * inputs
        self.num_products += self._num_flat * _WIDTH

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes. The weight of a convolution is (3 · 3 · C, H), rows of pixels first."""
        shapes: dict[str, tuple[int, ...]] = {}
        inputs = self._images.num_channels
        for section, channels in enumerate(_CHANNELS):
            for k in range(1 + 2 * _BLOCKS):
                name = f"{self._prefix}.{section}.{k}"
                shapes[f"{name}.weight"] = (9 * inputs, channels)
                shapes[f"{name}.bias"] = (channels,)
                inputs = channels
        name = f"{self._prefix}.{len(_CHANNELS)}"
        shapes[f"{name}.weight"] = (self._num_flat, _WIDTH)
        shapes[f"{name}.bias"] = (_WIDTH,)
        return shapes | (norm_shapes(name, _WIDTH) if self._has_norm else {})

    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        from torch.nn.functional import max_pool2d

        def convolve(x: Tensor, section: int, k: int) -> Tensor:
            name = f"{self._prefix}.{section}.{k}"
            weight = to_kernels(params[f"{name}.weight"], 3)
            return operations.convolve(x, weight, params[f"{name}.bias"], 1, 1)

        x = self._images.tensor(obs)
        for section in range(len(_CHANNELS)):
            x = max_pool2d(convolve(x, section, 0), 3, stride=2, padding=1)
            for block in range(_BLOCKS):
                inner = convolve(x.relu(), section, 1 + 2 * block).relu()
                x = x + convolve(inner, section, 2 + 2 * block)
        name = f"{self._prefix}.{len(_CHANNELS)}"
        x = operations.linear(to_rows(x.relu()), params[f"{name}.weight"], params[f"{name}.bias"])
        return (normalize_rows(x, params, name) if self._has_norm else x).relu()
