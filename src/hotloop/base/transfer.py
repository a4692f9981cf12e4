"""Transfers between the host and a device: single arrays, pinned memory, copies in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.types import Array

ArraySpec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""

_ALIGN = 64  # bytes, alignment of the arrays in the inbox


def to_host(x: Any) -> Array:
    """Return a tensor as an array, after waiting for the device. Arrays are returned unchanged.

    On the CPU they share memory.
    """
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else x


def to_device(array: Array, device: torch.device | str | None) -> Any:
    """Return an array as a tensor on a device, or unchanged if the device is None.

    On the CPU they share memory.
    """
    return array if device is None else torch.from_numpy(array).to(device)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def aligned(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `size`."""
    return -(-size // step) * step


class Inbox:
    """Host arrays that one copy transfers to the device together.

    For a GPU the host arrays are in pinned memory, so that the host continues during the copy. The
    host has two blocks: it writes one while the device may still read the other. The device has one
    block, whose tensors have fixed addresses, as a captured graph requires.

    Args:
        parts: shape and dtype of each array by name.
        device: the device.

    Attributes:
        blocks: arrays of both host blocks by name.
        turn: index of the block to write next, 0 or 1.
        arrays: arrays of that block, with the contents of two sends ago.
        tensors: tensors on the device by name, with the contents of the last send.
    """

    def __init__(self, parts: Mapping[str, ArraySpec], device: torch.device) -> None:
        starts: dict[str, int] = {}
        end = 0
        for name, (shape, dtype) in parts.items():
            starts[name] = end
            end = aligned(end + math.prod(shape) * dtype.itemsize, _ALIGN)
        is_pinned = device.type != "cpu"
        self._hosts = [
            pinned((end,), torch.uint8) if is_pinned else torch.zeros(end, dtype=torch.uint8)
            for _ in range(2)
        ]
        self._events = [DeviceEvent(device) for _ in range(2)] if is_pinned else []
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.blocks = [
            {
                name: np.ndarray(shape, dtype, host.zero_().numpy().data, starts[name])
                for name, (shape, dtype) in parts.items()
            }
            for host in self._hosts
        ]
        self.tensors = {
            name: self._device[starts[name] : starts[name] + math.prod(shape) * dtype.itemsize]
            .view(torch_dtype(dtype))
            .view(shape)
            for name, (shape, dtype) in parts.items()
        }
        self.turn = 0
        self.arrays = self.blocks[0]

    def send(self) -> None:
        """Start to copy all arrays to the device, and switch `arrays` to the other block.

        Wait until the previous copy from the other block has ended.
        """
        self._device.copy_(self._hosts[self.turn], non_blocking=True)
        if self._events:
            self._events[self.turn].record()
        self.turn = 1 - self.turn
        self.arrays = self.blocks[self.turn]
        if self._events:
            self._events[self.turn].wait()


class Uploads:
    """Asynchronous copies of host arrays to a device.

    For a GPU they go through two blocks of pinned memory: the host writes one while the device
    copies the other. On the CPU they are plain copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_staged = device, device.type != "cpu"
        self._stages: list[dict[tuple[str, torch.dtype], Tensor]] = [{}, {}]
        self._events = [DeviceEvent(device), DeviceEvent(device)]
        self._turn = 0

    def __enter__(self) -> Uploads:
        """Wait until the copies of the `with` block before the last one have ended."""
        if self._is_staged:
            self._turn = 1 - self._turn
            self._events[self._turn].wait()
        return self

    def __exit__(self, *error: object) -> None:
        """Record an event after the copies."""
        if self._is_staged:
            self._events[self._turn].record()

    def send(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return arrays as tensors on the device. On the CPU, they share the arrays' memory.

        Copies to a GPU are queued after its earlier work. The call does not wait for them, and the
        arrays may change at once. Two calls can be in flight: the third waits for the first.
        """
        sources = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if not self._is_staged:
            return sources
        targets = {name: torch.empty_like(x, device=self._device) for name, x in sources.items()}
        with self:
            for name, target in targets.items():
                self.put(name, target, arrays[name])
        return targets

    def put(self, name: str, target: Tensor, array: Array) -> None:
        """Copy an array into a tensor of its shape.

        Args:
            name: with the dtype, the key of the pinned memory, unique within a `with` block.
            target: the tensor, or a part of a tensor.
            array: an array of the same dtype.
        """
        source = torch.from_numpy(np.ascontiguousarray(array)).view(target.shape)
        if self._is_staged:
            stage, key = self._stages[self._turn], (name, source.dtype)
            if key not in stage or stage[key].numel() < source.numel():
                stage[key] = pinned((source.numel(),), source.dtype)
            staged = stage[key][: source.numel()].view(source.shape)
            staged.copy_(source)
            source = staged
        target.copy_(source, non_blocking=True)


class Downloads:
    """Asynchronous copies of tensors from a device to the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[tuple[Tensor, DeviceEvent]] = []

    def start(self, tensor: Tensor) -> Any:
        """Start to copy a tensor, and return the download for `read`."""
        if self._device.type == "cpu":
            return tensor.clone(), None
        kind = tensor.shape, tensor.dtype
        index = next((k for k, (x, _) in enumerate(self._free) if (x.shape, x.dtype) == kind), None)
        if index is None:
            host, mark = pinned(tuple(tensor.shape), tensor.dtype), DeviceEvent(self._device)
        else:
            host, mark = self._free.pop(index)
        host.copy_(tensor, non_blocking=True)
        mark.record()
        return host, mark

    def read(self, download: Any, out: Array | None = None) -> Array:
        """Wait for a download, and return a copy of its array, or write it to `out`."""
        host, mark = download
        if mark is not None:
            mark.wait()
            self._free.append(download)
        out = np.empty(tuple(host.shape), host.numpy().dtype) if out is None else out
        np.copyto(out, host.numpy())
        return out


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return pinned host memory, which a GPU copies asynchronously."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class DeviceEvent:
    """An event in the queue of a GPU's work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = None

    def record(self) -> None:
        """Record the event after all work queued so far."""
        if self._event is None:
            self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait until the device reaches the event, if it was ever recorded."""
        if self._event is not None:
            self._event.synchronize()
