"""Images of any axis order and dtype as tensors for convolutions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec, image_axes
from hotloop.errors import SpaceError

if TYPE_CHECKING:
    from torch import Tensor

_MAX_BYTE = 255.0


class ImageFormat:
    """The axis order and dtype of images, and their conversion to tensors.

    Args:
        obs_spec: observations that are one image each, see `image_axes`: bytes, which are scaled by
            the bounds of their space, or floats in 0 … 1.

    Attributes:
        num_channels: C, of all stacked frames together.
        height, width: H, W, in pixels.

    Raises:
        SpaceError: the observations are no images, or their channel axis is ambiguous.
    """

    def __init__(self, obs_spec: ObsSpec) -> None:
        shape, field = obs_spec.shape, obs_spec.layout[0]
        axes = image_axes(shape)
        if axes is None:
            raise SpaceError(
                "an image must have the shape (H, W), (C, H, W) or (H, W, C), or be a stack of "
                "such frames along the first axis, and its channel axis must be the shortest, got "
                f"{shape}: choose `network` 'perceptron', transpose it in a wrapper, or pass a "
                "network of your own"
            )
        self._order = (0, *(axis + 1 for axis in axes))
        *channels, self.height, self.width = (shape[axis] for axis in axes)
        self.num_channels = math.prod(channels)
        self._low, high = field.byte_bounds or (0.0, _MAX_BYTE)
        self._factor = 1.0 / (high - self._low or 1.0)
        is_unit = field.low is not None and field.low >= 0.0 and (field.high or 2.0) <= 1.0
        is_float = obs_spec.dtype != "uint8" and field.byte_bounds is None
        if is_float and field.encoding == "box" and not is_unit:
            raise SpaceError(
                "images of floats must lie within 0 … 1, but the bounds of their space are "
                f"{'−inf' if field.low is None else field.low} … "
                f"{'inf' if field.high is None else field.high}: use bytes, or scale the "
                "images and the bounds of their space to 0 … 1"
            )

    def tensor(self, obs: Tensor) -> Tensor:
        """Return float32, (B, C, H, W), in channels-last format, numbers in 0 … 1.

        Args:
            obs: (B, *obs_shape), uint8 or float32.
        """
        import torch

        if len(self._order) == 3:
            obs = obs.unsqueeze(1)
        elif self._order != tuple(range(len(self._order))):
            obs = obs.permute(self._order)
        if len(self._order) == 5:
            obs = obs.flatten(1, 2)
        # Compiled, this is one pass over the bytes.
        image = obs.to(torch.float32, memory_format=torch.channels_last)
        if obs.dtype != torch.uint8:  # already in 0 … 1, or normalized
            return image
        return (image - self._low if self._low else image) * self._factor
