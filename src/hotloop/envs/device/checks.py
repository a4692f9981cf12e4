"""Checks of what device environments give, made once: each of them would cost every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep, DeviceVectorEnv
from hotloop.errors import EnvironmentFailure


def check_obs(obs: Any, envs: DeviceVectorEnv, name: str = "obs") -> None:
    """Hold observations against what the environments say of them.

    Raises:
        EnvironmentFailure: they are no such tensor, or on another device.
    """
    spec = envs.obs_spec
    _check(name, obs, (envs.num_envs, *spec.shape), getattr(torch, spec.dtype), envs.device)


def check_step(step: DeviceStep, envs: DeviceVectorEnv) -> None:
    """Hold what a step gave against what the environments say of it.

    Raises:
        EnvironmentFailure: it is something else.
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
        given = f"a {type(x).__name__}"
    elif (tuple(x.shape), x.dtype) == (shape, dtype) and x.device.type == device.type:
        return
    else:
        given = f"{x.dtype} of shape {tuple(x.shape)} on {x.device}"
    raise EnvironmentFailure(
        f"`{name}` of environments on the device must be {dtype} of shape {shape} on {device}, got "
        f"{given}: make it so in their `reset` and `step`"
    )
