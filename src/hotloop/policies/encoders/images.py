"""Images of any axis order and dtype as tensors for convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError

if TYPE_CHECKING:
    from torch import Tensor

_MAX_BYTE = 255.0


class ImageFormat:
    """The axis order and dtype of images, and their conversion to tensors.

    Args:
        obs_spec: observations that are one image each: (H, W), (C, H, W) or (H, W, C), bytes, or
            numbers in 0 … 1. The channel axis is the first or the last one and shorter than both
            others.

    Attributes:
        num_channels: C.
        height, width: H, W, in pixels.

    Raises:
        SpaceError: the observations are no images, or their channel axis is ambiguous.
    """

    def __init__(self, obs_spec: ObsSpec) -> None:
        shape = obs_spec.shape
        if len(shape) not in (2, 3):
            raise SpaceError(
                f"an image must have the shape (H, W), (C, H, W) or (H, W, C), got {shape}: "
                "choose `network` 'perceptron', or wrap the environment"
            )
        self._axes = _axes(shape)
        self.num_channels, self.height, self.width = (
            (1, *shape) if len(shape) == 2 else tuple(shape[axis] for axis in self._axes)
        )
        self._is_2d = len(shape) == 2
        field = obs_spec.layout[0]
        is_unit = field.low is not None and field.low >= 0.0 and (field.high or 2.0) <= 1.0
        if obs_spec.dtype != "uint8" and field.encoding == "box" and not is_unit:
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

        if self._is_2d:
            obs = obs.unsqueeze(1)
        elif self._axes[0] == 2:
            obs = obs.permute(0, 3, 1, 2)
        # One pass over the bytes if compiled.
        image = obs.to(torch.float32, memory_format=torch.channels_last)
        return image * (1.0 / _MAX_BYTE) if obs.dtype == torch.uint8 else image


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of channels, height and width, or raise SpaceError if ambiguous."""
    if len(shape) == 2:
        return (0, 1)
    if shape[0] < min(shape[1:]):
        return (0, 1, 2)
    if shape[2] < min(shape[:2]):
        return (2, 0, 1)
    raise SpaceError(
        f"the channel axis of an image must be the first or the last and shorter than both others, "
        f"got the shape {shape}: transpose or resize it in a wrapper, or pass a network of your own"
    )
