"""Images of any layout, as tensors that convolutions take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import SpaceError

if TYPE_CHECKING:
    from torch import Tensor

_BYTE = 255.0


class Images:
    """How images lie in observations, and what is made of them.

    Args:
        obs_spec: of observations that are one image each: (H, W), (C, H, W) or (H, W, C), bytes, or
            numbers in 0 … 1. The channels' axis is the first or the last, whichever is shorter than
            both others.

    Attributes:
        num_channels: C.
        height, width: H, W.

    Raises:
        SpaceError: they are no images, or their channels can't be told.
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
                "images of floats must lie within 0 … 1, but their space says "
                f"{'−inf' if field.low is None else field.low} … "
                f"{'inf' if field.high is None else field.high}: give bytes, or divide them and "
                "say so in the space"
            )

    def tensor(self, obs: Tensor) -> Tensor:
        """Return float32, (B, C, H, W), channels last in memory, numbers in 0 … 1.

        Args:
            obs: (B, *obs_shape), uint8 or float32.
        """
        import torch

        if self._is_2d:
            obs = obs.unsqueeze(1)
        elif self._axes[0] == 2:
            obs = obs.permute(0, 3, 1, 2)
        # One pass over the bytes where it is compiled.
        image = obs.to(torch.float32, memory_format=torch.channels_last)
        return image * (1.0 / _BYTE) if obs.dtype == torch.uint8 else image


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of channels, height and width.

    Raises:
        SpaceError: they can't be told.
    """
    if len(shape) == 2:
        return (0, 1)
    if shape[0] < min(shape[1:]):
        return (0, 1, 2)
    if shape[2] < min(shape[:2]):
        return (2, 0, 1)
    raise SpaceError(
        f"the channels of an image must be its first or its last axis, shorter than both others, "
        f"but of {shape} that can't be told: transpose or resize it in a wrapper, or give a "
        "network of your own"
    )
