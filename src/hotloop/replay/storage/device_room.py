"""Room on a device, and the fields that can lie there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hotloop.errors import ConfigError
from hotloop.replay.storage.device import Make, RowFormat, row_fields
from hotloop.replay.storage.device_frames import room
from hotloop.system.memory import available_memory, in_units

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
_APART_BYTES = 1024  # observations that take more are images


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Make]:
    """Return shape and dtype of each field.

    Raises:
        ConfigError: they are others than those of a transition on a device.
    """
    made = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in fields.items()}
    needed = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
    if set(made) != set(FIELDS) or made["obs"] != made["next_obs"]:
        raise ConfigError(
            f"a replay on a device holds {', '.join(f'`{name}`' for name in FIELDS)}, of which "
            f"`obs` and `next_obs` are alike, got {', '.join(map(str, made)) or 'nothing'}: keep "
            "other fields in a `ReplayBuffer`"
        )
    for name, dtype in needed.items():
        if made[name] != ((), np.dtype(dtype)):
            raise ConfigError(f"field `{name}` must be ((), np.{np.dtype(dtype)})")
    if math.prod(made["action"][0]) * made["action"][1].itemsize > _APART_BYTES:
        raise ConfigError(
            f"an action may take {_APART_BYTES:,} bytes on a device, got {made['action']}: keep "
            "these in a `ReplayBuffer`"
        )
    return made


def needed_bytes(
    capacity: int,
    fields: Mapping[str, Any],
    num_envs: int,
    n_step: int,
    frame_stacks: tuple[str, ...],
) -> int:
    """Return the bytes that a `DeviceReplay` takes on its device; the arguments are its."""
    made = checked_fields(fields)
    obs, has_frames = made["obs"], is_apart(made, frame_stacks)
    num_places = obs[0][0] if frame_stacks else 1
    layout = RowFormat(row_fields(obs, made["action"], num_places, has_frames=has_frames))
    size = (capacity + 1) * layout.dtype.itemsize
    if has_frames:
        num_frames, _ = room(capacity, num_envs, n_step, num_places)
        size += (num_frames + 1) * (math.prod(obs[0]) * obs[1].itemsize // num_places)
    return size


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that a device has free, in bytes; None: not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory()


def need_device_memory(size: int, capacity: int, device: torch.device) -> None:
    """Refuse a replay that a device has no room for.

    Raises:
        ConfigError: says how much it needs, and how much is free.
    """
    free = free_bytes(device)
    if free is not None and size > free:
        raise ConfigError(
            f"a replay of {capacity:,} transitions on {device} takes {in_units(size)}, and "
            f"{in_units(free)} are free: lower `buffer_size`, or keep it on the host "
            "(`replay_device` 'host')"
        )


def is_apart(fields: Mapping[str, Make], stacks: Any) -> bool:
    """Return whether observations are kept as frames."""
    shape, dtype = fields["obs"]
    return bool(stacks) or math.prod(shape) * dtype.itemsize > _APART_BYTES
