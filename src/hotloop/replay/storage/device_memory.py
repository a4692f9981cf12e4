"""Memory requirements of a replay on a device, and the fields that it supports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hotloop.base.memory import available_memory, format_bytes
from hotloop.base.transfer import ArraySpec
from hotloop.errors import ConfigError
from hotloop.replay.storage.device_store import RowFormat, row_fields
from hotloop.replay.storage.frame_ring import ring_size

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
_MASKS = ("mask", "next_mask")
_MAX_ROW_ITEM_BYTES = 1024  # larger observations are stored as frames


def unnested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the parts of `obs` and `next_obs` as fields of their own.

    `obs` may have the parts `obs` and `mask`. In `next_obs` they become `next_obs` and `next_mask`.
    """
    flat: dict[str, Any] = {}
    for name, field in fields.items():
        if isinstance(field, Mapping):
            prefix = "next_" if name == "next_obs" else ""
            flat |= {f"{prefix}{part}": x for part, x in field.items()}
        else:
            flat[name] = field
    return flat


def check_fields(fields: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """Return shape and dtype of each field of `unnested`.

    Raises:
        ConfigError: a device does not support these fields.
    """
    pairs = unnested(fields).items()
    specs = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in pairs}
    dtypes = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
    names = {*FIELDS, *(_MASKS if "mask" in specs else ())}
    if set(specs) != names or specs["obs"] != specs["next_obs"]:
        raise ConfigError(
            f"a replay on a device has the fields {', '.join(f'`{name}`' for name in FIELDS)}, "
            f"with `obs` and `next_obs` alike, got {', '.join(map(str, specs)) or 'nothing'}: keep "
            "other fields in a `ReplayBuffer`"
        )
    for name, dtype in dtypes.items():
        if specs[name] != ((), np.dtype(dtype)):
            raise ConfigError(f"field `{name}` must be ((), np.{np.dtype(dtype)})")
    for name in names & {"action", "mask"}:
        shape, dtype = specs[name]
        size = math.prod(shape) * dtype.itemsize
        if size > _MAX_ROW_ITEM_BYTES:
            raise ConfigError(
                f"on a device, `{name}` may take {_MAX_ROW_ITEM_BYTES:,} bytes of a transition, "
                f"got {size:,}: keep such transitions in a `ReplayBuffer`"
            )
    return specs


def needed_bytes(
    capacity: int,
    fields: Mapping[str, Any],
    num_envs: int,
    n_step: int,
    frame_stacks: tuple[str, ...],
) -> int:
    """Return the bytes on the device of a `DeviceReplay` with these arguments."""
    specs = check_fields(fields)
    obs, has_frames = specs["obs"], stores_frames(specs, frame_stacks)
    frames_per_obs = obs[0][0] if frame_stacks else 1
    layout = RowFormat(row_fields(specs, frames_per_obs, has_frames=has_frames))
    size = (capacity + 1) * layout.dtype.itemsize
    if has_frames:
        num_frames, _ = ring_size(capacity, num_envs, n_step, frames_per_obs)
        size += (num_frames + 1) * (math.prod(obs[0]) * obs[1].itemsize // frames_per_obs)
    return size


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None: unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory()


def need_device_memory(size: int, capacity: int, device: torch.device) -> None:
    """Check that a replay fits into the free memory of a device.

    Raises:
        ConfigError: the device has less than `size` bytes free.
    """
    free = free_bytes(device)
    if free is not None and size > free:
        raise ConfigError(
            f"a replay of {capacity:,} transitions on {device} takes {format_bytes(size)}, and "
            f"{format_bytes(free)} are free: lower `buffer_size`, or keep it on the host "
            "(`replay_device` 'host')"
        )


def stores_frames(fields: Mapping[str, ArraySpec], frame_stacks: Any) -> bool:
    """Return whether observations are stored as frames."""
    shape, dtype = fields["obs"]
    return bool(frame_stacks) or math.prod(shape) * dtype.itemsize > _MAX_ROW_ITEM_BYTES
