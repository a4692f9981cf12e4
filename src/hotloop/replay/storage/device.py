"""Storage of transitions on a device: a ring of rows, and the inbox through which they come.

A row holds one transition, its fields side by side. So a step is stored with one copy, and a batch
is gathered by one `index_select`; the fields of a batch are views of it. Rows are int32 words: a
field of four-byte numbers is then a view of the same width, which Inductor fuses into what reads
it. Images are kept as frames, apart from the rows, which hold numbers of frames.
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

Make = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""

_ALIGN = 64  # bytes; where parts of the inbox begin


class RowFormat:
    """The place of each field within a row.

    A field begins at a multiple of its item size, an array at a multiple of 16 bytes, as matrix
    products read it fastest.

    Args:
        fields: shape and dtype by name, in order.

    Attributes:
        dtype: the row as a structured dtype of NumPy.
        num_words: its length in words of four bytes.
    """

    def __init__(self, fields: Mapping[str, Make]) -> None:
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
        """Return the fields of some rows, int32, (B, num_words), as views, (B, *shape)."""
        fields: dict[str, Tensor] = {}
        for name, part, dtype, size, shape in self._parts:
            numbers = words[:, part].view(dtype)
            if numbers.shape[1] > size:  # smaller items than a word end before the word does
                numbers = numbers[:, :size]
            fields[name] = numbers.view(len(words), *shape)
        return fields


@dataclass(slots=True)
class Stored:
    """The tensors of a replay buffer, as a launch takes them.

    A launch writes to them only what it would write again if it were repeated. So trial calls and
    warm-ups of a graph share them instead of copying some GiB.

    Attributes:
        rows: int32, (capacity + 1, words); the last one is a spare that unused writes go to.
        frames: (F + 1, *frame_shape) of images, with a spare frame; else None.
        uniform: float64, (R, B), uniform numbers by which batches are drawn; None where the host
            draws.
        inbox: by name, what the host sent for this launch, see `Inbox`.
    """

    rows: Tensor
    frames: Tensor | None
    uniform: Tensor | None
    inbox: dict[str, Tensor]

    def __deepcopy__(self, memo: dict[int, Any]) -> Stored:
        """Return the same object, since copies share a buffer."""
        return self


def store_new(stored: Stored) -> None:
    """Write the new rows and frames of the inbox to the rings: operations on tensors alone."""
    stored.rows.index_copy_(0, stored.inbox["row_slots"], stored.inbox["rows"])
    if stored.frames is not None:
        stored.frames.index_copy_(0, stored.inbox["frame_slots"], stored.inbox["frames"])


def numbers_drawn(stored: Stored, count: int) -> Tensor:
    """Return the numbers of the transitions of the next `count` batches, int64, (count, B)."""
    if stored.uniform is None:
        return stored.inbox["numbers"][:count]
    uniform = stored.uniform.index_select(0, stored.inbox["draws"][:count])
    return numbers_of(stored.inbox["counts"], uniform)


def numbers_of(counts: Tensor, uniform: Tensor) -> Tensor:
    """Return numbers of transitions, each as likely as any other.

    ⌊u · size⌋ is below `size` up to sizes of 2⁵³: a u below 1 is at most 1 − 2⁻⁵³.

    Args:
        counts: int64, (2,), the number of the oldest transition, and how many there are.
        uniform: float64, any shape, in [0, 1).

    Returns:
        int64, the same shape.
    """
    return counts[0] + (uniform * counts[1]).to(torch.int64)


def gathered(
    stored: Stored, layout: RowFormat, number: Tensor, obs_shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return transitions by field: `obs`, `action`, `reward`, `next_obs` and `discount`, (B, …).

    Args:
        stored: all transitions.
        layout: of the rows.
        number: int64, (B,), numbers of transitions that are there.
        obs_shape: of one observation.
    """
    slot = number % (stored.rows.shape[0] - 1)
    fields = layout.split(stored.rows.index_select(0, slot))
    if stored.frames is not None:
        places = fields.pop("places").transpose(0, 1).reshape(-1)
        both = stored.frames.index_select(0, places).reshape(2, len(number), *obs_shape)
        fields["obs"], fields["next_obs"] = both[0], both[1]
    return fields


def row_fields(obs: Make, action: Make, num_places: int, *, has_frames: bool) -> dict[str, Make]:
    """Return the fields of a row: those that a batch needs.

    Args:
        obs: shape and dtype of an observation.
        action: the same of an action.
        num_places: S, frames that make an observation.
        has_frames: whether observations are kept as frames, of which a row holds the numbers.
    """
    number: Make = ((), np.dtype(np.float32))
    seen: dict[str, Make] = {"obs": obs, "next_obs": obs}
    if has_frames:
        seen = {"places": ((2, num_places), np.dtype(np.int32))}
    return {**seen, "action": action, "reward": number, "discount": number}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step


class Inbox:
    """Arrays that the host writes, and one copy brings to the device together.

    To a GPU they go through pinned memory, so that the host goes on while they are copied. There
    are two such blocks: one is written while the other may still be read. On the device there is
    one, and its tensors keep their addresses, as a captured graph needs.

    Args:
        parts: shape and dtype of each array by name.
        device: the device.

    Attributes:
        blocks: of both blocks, the arrays by name.
        turn: the block that is written next, 0 or 1.
        arrays: that block's arrays; they hold what they held two sends ago.
        tensors: by name, what was sent last, on the device.
    """

    def __init__(self, parts: Mapping[str, Make], device: torch.device) -> None:
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
        self._marks = [Mark(device) for _ in range(2)] if is_pinned else []
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
        """Begin to copy everything to the device; `arrays` are then those of the other block.

        Wait until that block's own copy, of the send before, has ended.
        """
        self._device.copy_(self._hosts[self.turn], non_blocking=True)
        if self._marks:
            self._marks[self.turn].set()
        self.turn = 1 - self.turn
        self.arrays = self.blocks[self.turn]
        if self._marks:
            self._marks[self.turn].wait()


class Uploads:
    """Host arrays on their way to a device.

    To a GPU they go through pinned memory: what is written there is copied while the host goes on.
    There are two pieces of it, so that one is written to while the other is read. On the CPU it is
    a plain copy.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_staged = device.type != "cpu"
        self._stages: list[dict[str, Tensor]] = [{}, {}]
        self._marks = [Mark(device), Mark(device)]
        self._turn = 0

    def __enter__(self) -> Uploads:
        """Begin to write: wait until what was written the time before last has been copied."""
        if self._is_staged:
            self._turn = 1 - self._turn
            self._marks[self._turn].wait()
        return self

    def __exit__(self, *error: object) -> None:
        """Mark where the device has copied it all."""
        if self._is_staged:
            self._marks[self._turn].set()

    def put(self, name: str, target: Tensor, array: Array) -> None:
        """Copy an array into a tensor of its shape.

        Args:
            name: of what is written once between `__enter__` and `__exit__`.
            target: the tensor, or a part of one.
            array: of its dtype.
        """
        source = torch.from_numpy(np.ascontiguousarray(array)).view(target.shape)
        if self._is_staged:
            stage = self._stages[self._turn]
            if name not in stage or stage[name].numel() < source.numel():
                stage[name] = pinned((source.numel(),), source.dtype)
            there = stage[name][: source.numel()].view(source.shape)
            there.copy_(source)
            source = there
        target.copy_(source, non_blocking=True)


class Downloads:
    """Tensors on their way to the host, read once the device has come so far.

    Args:
        device: where from.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[tuple[Tensor, Mark]] = []

    def take(self, tensor: Tensor) -> Any:
        """Begin to copy a tensor; return what `read` takes."""
        if self._device.type == "cpu":
            return tensor.clone(), None
        place = next((k for k, one in enumerate(self._free) if one[0].shape == tensor.shape), None)
        if place is None:
            host, mark = pinned(tuple(tensor.shape), tensor.dtype), Mark(self._device)
        else:
            host, mark = self._free.pop(place)
        host.copy_(tensor, non_blocking=True)
        mark.set()
        return host, mark

    def read(self, taken: Any) -> Array:
        """Return a copy of what was taken, once it is there."""
        host, mark = taken
        if mark is not None:
            mark.wait()
            self._free.append(taken)
        return host.numpy().copy()


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return host memory that a GPU copies from and to by itself."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class Mark:
    """A mark in the queue of a GPU's work.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = None

    def set(self) -> None:
        """Have it stand behind what was asked for so far."""
        if self._event is None:
            self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait until the device has come to it; where it was never set, don't."""
        if self._event is not None:
            self._event.synchronize()
