"""An encoder for observations with several parts, some of them images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsField, ObsSpec
from hotloop.policies.encoders.base import Encoder, Operations

if TYPE_CHECKING:
    from torch import Tensor


_WIDTH = 64  # number of features of the numbers


class CompositeEncoder(Encoder):
    """The features of all images, in order, followed by those of the numbers.

    Each image has its own encoder. All numbers together pass through a linear layer and a ReLU,
    since a few raw numbers would carry little weight among the features of the images. Without
    images, the numbers are the features.

    Args:
        encoder_class: class of the images' encoders.
        obs_spec: the observations, with several parts.
        images: the parts of `obs_spec` that are encoded as images. All other parts are numbers.
        prefix: prefix of the parameters' names.
        layer_norm: whether to normalize layers of the images' encoders.
    """

    def __init__(
        self,
        encoder_class: type[Encoder],
        obs_spec: ObsSpec,
        images: Sequence[ObsField],
        prefix: str,
        *,
        layer_norm: bool = False,
    ) -> None:
        self._images: list[tuple[ObsField, Encoder]] = []
        self._numbers: list[ObsField] = []
        for k, part in enumerate(obs_spec.layout):
            if part in images:
                layout = (dataclasses.replace(part, start=0, stop=part.stop - part.start),)
                image_spec = ObsSpec(shape=part.shape, dtype=part.dtype, layout=layout)
                encoder = encoder_class(image_spec, f"{prefix}.{k}", layer_norm=layer_norm)
                self._images.append((part, encoder))
            else:
                self._numbers.append(part)
        self._layer = f"{prefix}.numbers"
        self._has_layer = bool(self._images and self._numbers)
        self._num_numbers = sum(math.prod(part.shape) for part in self._numbers)
        encoders = [encoder for _, encoder in self._images]
        width = _WIDTH if self._has_layer else self._num_numbers
        self.num_features = width + sum(encoder.num_features for encoder in encoders)
        self.num_products = sum(x.num_products for x in encoders)
        self.num_products += self._num_numbers * width if self._has_layer else 0

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        image_shapes = [encoder.parameter_shapes() for _, encoder in self._images]
        shapes = {name: shape for part in image_shapes for name, shape in part.items()}
        if self._has_layer:
            shapes[f"{self._layer}.weight"] = (self._num_numbers, _WIDTH)
            shapes[f"{self._layer}.bias"] = (_WIDTH,)
        return shapes

    def features(self, params: Mapping[str, Tensor], obs: Tensor, operations: Operations) -> Tensor:
        import torch

        features: list[Tensor] = []
        for part, encoder in self._images:
            image = obs[:, part.start : part.stop].unflatten(1, part.shape)
            features.append(encoder.features(params, image, operations))
        if self._numbers:
            numbers = torch.cat([_numbers(obs, part) for part in self._numbers], 1)
            if self._has_layer:
                weight, bias = params[f"{self._layer}.weight"], params[f"{self._layer}.bias"]
                numbers = operations.linear(numbers, weight, bias).relu()
            features.append(numbers)
        return torch.cat(features, 1)


def _numbers(obs: Tensor, part: ObsField) -> Tensor:
    """Return a part of rows as float32, (B, n)."""
    import torch

    values = obs[:, part.start : part.stop]
    if obs.dtype != torch.uint8:  # the whole row is scaled already
        return values
    if part.dtype == "uint8":
        values = values.to(torch.float32)
    else:
        is_exporting = torch.compiler.is_exporting()
        values = _decode(values) if is_exporting else values.view(torch.float32)
    if part.byte_bounds is None:
        return values
    low, high = part.byte_bounds
    return (values - low) * (1.0 / (high - low or 1.0))


def _decode(data: Tensor) -> Tensor:
    """Return the float32 numbers, (B, n), in bytes, (B, 4 n), by arithmetic."""
    # ONNX and other formats can't reinterpret bytes as floats. Numbers below 2⁻¹²⁶ become 0.
    import torch

    low, middle, high, top = data.unflatten(1, (-1, 4)).to(torch.float32).unbind(2)
    exponent = 2.0 * torch.remainder(top, 128.0) + (high >= 128.0)
    mantissa = (65536.0 * torch.remainder(high, 128.0) + 256.0 * middle + low) / 2.0**23
    magnitude = (1.0 + mantissa) * torch.exp2(exponent - 127.0)
    magnitude = torch.where(exponent > 0.0, magnitude, torch.zeros_like(magnitude))
    return torch.where(top >= 128.0, -magnitude, magnitude)
