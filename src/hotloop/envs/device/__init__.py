"""Environments on the learner's device, by id or factory, with torch tensors as arrays.

    envs = make_device_vec("hotloop:CartPole", 4096, torch.device("cuda"))

This package imports torch and JAX only when such environments are created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.envs.device.factory import is_on_device, make_device_vec, make_host_vec
from hotloop.envs.device.protocol import DeviceStep, DeviceVectorEnv, TensorEnvironment
from hotloop.envs.device.specs import box_actions, box_observations, discrete_actions

if TYPE_CHECKING:
    from hotloop.envs.device.functional import TensorVectorEnv

__all__ = [
    "DeviceStep",
    "DeviceVectorEnv",
    "TensorEnvironment",
    "TensorVectorEnv",
    "box_actions",
    "box_observations",
    "discrete_actions",
    "is_on_device",
    "make_device_vec",
    "make_host_vec",
]


def __getattr__(name: str) -> Any:
    """Import `TensorVectorEnv`, which needs torch, at its first use."""
    if name != "TensorVectorEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hotloop.envs.device.functional import TensorVectorEnv

    return TensorVectorEnv
