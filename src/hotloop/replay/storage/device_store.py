"""Storage of transitions on a device: a ring of rows, and transfers between host and device.

A row has the fields of one transition side by side. So one copy stores a step, and one
`index_select` gathers a batch, whose fields are views. Rows are int32 words: a field of four-byte
numbers is then a view of the same width, which Inductor fuses into its consumers. Images are
stored as frames outside the rows, and rows contain frame numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.types import Array

ArraySpec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""

_ALIGN = 64  # bytes, alignment of the arrays in the inbox


class RowFormat:
    """The positions of the fields within a row.

    A field starts at a multiple of its item size, and an array at a multiple of 16 bytes, which is
    fastest for matrix products.

    Args:
        fields: shape and dtype by name, in order.

    Attributes:
        dtype: structured NumPy dtype of a row.
        num_words: length of a row in words of four bytes.
    """

    def __init__(self, fields: Mapping[str, ArraySpec]) -> None:
        offsets: list[int] = []
        self._parts: list[tuple[str, slice, torch.dtype, int, tuple[int, ...]]] = []
        end = 0
        for name, (shape, dtype) in fields.items():
            start = _aligned(end, 16 if shape else max(4, dtype.itemsize))
            end = start + math.prod(shape) * dtype.itemsize
            offsets.append(start)
            words = slice(start // 4, _aligned(end, max(4, dtype.itemsize)) // 4)
            self._parts.append((name, words, torch_dtype(dtype), math.prod(shape), shape))
        formats = [(dtype, shape) for shape, dtype in fields.values()]
        size = _aligned(end, 16)
        kinds: Any = {"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": size}
        self.dtype: np.dtype[Any] = np.dtype(kinds)
        self.num_words = size // 4

    def split(self, words: Tensor) -> dict[str, Tensor]:
        """Return the fields of rows, int32, (B, num_words), as views, (B, *shape)."""
        fields: dict[str, Tensor] = {}
        for name, part, dtype, size, shape in self._parts:
            numbers = words[:, part].view(dtype)
            if numbers.shape[1] > size:  # items smaller than a word may not fill the last word
                numbers = numbers[:, :size]
            fields[name] = numbers.view(len(words), *shape)
        return fields


@dataclass(slots=True)
class ReplayTensors:
    """The tensors of a replay buffer that a launch reads and writes.

    A launch is idempotent: repeating it writes the same values. So trial calls and warm-ups of a
    graph share the tensors instead of copying some GiB.

    Attributes:
        rows: int32, (capacity + 1, words). Unused writes go to the last row.
        frames: (F + 1, *frame_shape) for images, including a spare frame; else None.
        uniform: float64, (R, B), uniform random numbers for drawing batches; None if the host draws
            batches.
        inbox: tensors that the host sent for this launch, by name, see `Inbox`.
    """

    rows: Tensor
    frames: Tensor | None
    uniform: Tensor | None
    inbox: dict[str, Tensor]

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayTensors:
        """Return the same object, since copies share a buffer."""
        return self


def store_new(stored: ReplayTensors) -> None:
    """Write the new rows and frames of the inbox to the rings, using tensor operations only."""
    stored.rows.index_copy_(0, stored.inbox["row_slots"], stored.inbox["rows"])
    if stored.frames is not None:
        stored.frames.index_copy_(0, stored.inbox["frame_slots"], stored.inbox["frames"])


def draw_numbers(stored: ReplayTensors, count: int) -> Tensor:
    """Return the numbers of the transitions of the next `count` batches, int64, (count, B)."""
    if stored.uniform is None:
        return stored.inbox["numbers"][:count]
    uniform = stored.uniform.index_select(0, stored.inbox["draws"][:count])
    return uniform_numbers(stored.inbox["counts"], uniform)


def uniform_numbers(counts: Tensor, uniform: Tensor) -> Tensor:
    """Return uniformly drawn numbers of transitions.

    ⌊u · size⌋ is below `size` up to sizes of 2⁵³, since a u below 1 is at most 1 − 2⁻⁵³.

    Args:
        counts: int64, (2,), the number of the oldest transition, and the number of transitions.
        uniform: float64, any shape, in [0, 1).

    Returns:
        int64, the same shape.
    """
    return counts[0] + (uniform * counts[1]).to(torch.int64)


def gather_rows(
    stored: ReplayTensors, layout: RowFormat, number: Tensor, obs_shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return transitions by field: `obs`, `action`, `reward`, `next_obs` and `discount`, (B, …).

    Args:
        stored: all transitions.
        layout: layout of the rows.
        number: int64, (B,), numbers of stored transitions.
        obs_shape: shape of an observation.
    """
    slot = number % (stored.rows.shape[0] - 1)
    fields = layout.split(stored.rows.index_select(0, slot))
    if stored.frames is not None:
        places = fields.pop("places").transpose(0, 1).reshape(-1)
        both = stored.frames.index_select(0, places).reshape(2, len(number), *obs_shape)
        fields["obs"], fields["next_obs"] = both[0], both[1]
    return fields


def row_fields(
    obs: ArraySpec, action: ArraySpec, frames_per_obs: int, *, has_frames: bool
) -> dict[str, ArraySpec]:
    """Return shape and dtype of each field of a row: of observations, or of their frame numbers."""
    number: ArraySpec = ((), np.dtype(np.float32))
    obs_fields: dict[str, ArraySpec] = {"obs": obs, "next_obs": obs}
    if has_frames:
        obs_fields = {"places": ((2, frames_per_obs), np.dtype(np.int32))}
    return {**obs_fields, "action": action, "reward": number, "discount": number}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _aligned(size: int, step: int) -> int:
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
            end = _aligned(end + math.prod(shape) * dtype.itemsize, _ALIGN)
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

        Wait until the previous copy, from that block, has ended.
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
        self._is_staged = device.type != "cpu"
        self._stages: list[dict[str, Tensor]] = [{}, {}]
        self._events = [DeviceEvent(device), DeviceEvent(device)]
        self._turn = 0

    def __enter__(self) -> Uploads:
        """Wait until the copies of the last but one `with` block have ended."""
        if self._is_staged:
            self._turn = 1 - self._turn
            self._events[self._turn].wait()
        return self

    def __exit__(self, *error: object) -> None:
        """Record an event after the copies."""
        if self._is_staged:
            self._events[self._turn].record()

    def put(self, name: str, target: Tensor, array: Array) -> None:
        """Copy an array into a tensor of its shape.

        Args:
            name: key of the pinned memory, unique within a `with` block.
            target: the tensor, or a part of a tensor.
            array: an array of the same dtype.
        """
        source = torch.from_numpy(np.ascontiguousarray(array)).view(target.shape)
        if self._is_staged:
            stage = self._stages[self._turn]
            if name not in stage or stage[name].numel() < source.numel():
                stage[name] = pinned((source.numel(),), source.dtype)
            staged = stage[name][: source.numel()].view(source.shape)
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
        index = next((k for k, old in enumerate(self._free) if old[0].shape == tensor.shape), None)
        if index is None:
            host, mark = pinned(tuple(tensor.shape), tensor.dtype), DeviceEvent(self._device)
        else:
            host, mark = self._free.pop(index)
        host.copy_(tensor, non_blocking=True)
        mark.record()
        return host, mark

    def read(self, download: Any) -> Array:
        """Wait for a download, and return a copy of its array."""
        host, mark = download
        if mark is not None:
            mark.wait()
            self._free.append(download)
        return host.numpy().copy()


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
