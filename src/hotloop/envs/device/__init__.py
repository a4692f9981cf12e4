"""Environments on the learner's device, by id or factory: their arrays are torch tensors there.

    envs = make_device_vec("hotloop:CartPole", 4096, torch.device("cuda"))

Nothing here imports torch or JAX before such environments are made.
"""

from __future__ import annotations

from hotloop.envs.device.factory import is_on_device, make_device_vec, make_host_vec
from hotloop.envs.device.protocol import DeviceStep, DeviceVectorEnv, TensorEnvironment

__all__ = [
    "DeviceStep",
    "DeviceVectorEnv",
    "TensorEnvironment",
    "is_on_device",
    "make_device_vec",
    "make_host_vec",
]
