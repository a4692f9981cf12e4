"""Checks of the tensors of device environments, made only once, since they cost time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep, DeviceVectorEnv
from hotloop.errors import EnvironmentFailure


def check_obs(obs: Any, envs: DeviceVectorEnv, name: str = "obs") -> None:
    """Check shape, dtype and device of observations against the environments' spec.

    Raises:
        EnvironmentFailure: one of them differs.
    """
    spec = envs.obs_spec
    _check(name, obs, (envs.num_envs, *spec.shape), getattr(torch, spec.dtype), envs.device)


def check_step(step: DeviceStep, envs: DeviceVectorEnv) -> None:
    """Check shape, dtype and device of a step's tensors against the environments' spec.

    Raises:
        EnvironmentFailure: one of them differs.
    """
    check_obs(step.next_obs, envs, "next_obs")
    check_obs(step.obs, envs)
    rows = (envs.num_envs,)
    _check("reward", step.reward, rows, torch.float32, envs.device)
    _check("terminated", step.terminated, rows, torch.bool, envs.device)
    _check("truncated", step.truncated, rows, torch.bool, envs.device)


def _check(
    name: str, x: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    if not isinstance(x, Tensor):
        actual = f"a {type(x).__name__}"
    elif (tuple(x.shape), x.dtype) == (shape, dtype) and x.device.type == device.type:
        return
    else:
        actual = f"{x.dtype} of shape {tuple(x.shape)} on {x.device}"
    raise EnvironmentFailure(
        f"`{name}` of environments on the device must be {dtype} of shape {shape} on {device}, got "
        f"{actual}: correct their `reset` and `step`"
    )
