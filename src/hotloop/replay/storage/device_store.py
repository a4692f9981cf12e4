"""Storage of transitions on a device: a ring of rows.

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

from hotloop.base.transfer import ArraySpec, aligned, torch_dtype


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
            start = aligned(end, 16 if shape else max(4, dtype.itemsize))
            end = start + math.prod(shape) * dtype.itemsize
            offsets.append(start)
            words = slice(start // 4, aligned(end, max(4, dtype.itemsize)) // 4)
            self._parts.append((name, words, torch_dtype(dtype), math.prod(shape), shape))
        formats = [(dtype, shape) for shape, dtype in fields.values()]
        size = aligned(end, 16)
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

    With action masks, there are `mask` and `next_mask` too.

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
    specs: Mapping[str, ArraySpec], frames_per_obs: int, *, has_frames: bool
) -> dict[str, ArraySpec]:
    """Return shape and dtype of each field of a row: of observations, or of their frame numbers."""
    number: ArraySpec = ((), np.dtype(np.float32))
    fields: dict[str, ArraySpec] = {name: specs[name] for name in ("obs", "next_obs")}
    if has_frames:
        fields = {"places": ((2, frames_per_obs), np.dtype(np.int32))}
    fields |= {"action": specs["action"], "reward": number, "discount": number}
    return fields | {name: specs[name] for name in ("mask", "next_mask") if name in specs}
