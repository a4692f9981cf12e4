"""Batches that `sample` returns, and their memory, which is reused when no batch refers to it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotloop.errors import ReplayError
from hotloop.replay.native.gather import FROM_NEXT, FROM_POOL, FROM_POOL_NEXT, FROM_ROW
from hotloop.replay.native.handle import BATCH, COPY
from hotloop.replay.storage.allocator import aligned_array
from hotloop.replay.storage.layout import RowLayout
from hotloop.types import Array

_SOURCES = {"row": FROM_ROW, "next": FROM_NEXT, "pool": FROM_POOL, "next_pool": FROM_POOL_NEXT}


class Batch:
    """B transitions with one attribute per field: `batch.obs` is (B, *obs_shape).

    A field that was declared as a dictionary is a dictionary. With `Sequences`, all arrays are
    (T, B, …), `index` too, except `memory`. In addition to the fields there are

    Attributes:
        index: int64, (B,), numbers of the entries, for `update_weights`.
        mask: bool, (T, B), the transitions to learn from. `Sequences` only.
        weight: float64, (B,), weights. Weighted samplers only, as is `probability`.
        probability: float64, (B,), probability of each entry in one draw.
        importance: float32, (B,), importance-sampling weights, at most 1. `Prioritized` and
            `RankBased` only.
    """

    __slots__ = ("__dict__", "_block")  # keeps `_block` out of the attributes
    _block: BatchBlock | None

    def __init__(self, arrays: dict[str, Any], block: BatchBlock | None = None) -> None:
        self.__dict__.update(arrays)
        self._block = block

    def __getattr__(self, name: str) -> Any:  # called for missing attributes only
        raise AttributeError(f"this batch has no `{name}`: it has {', '.join(self.__dict__)}")

    def __getitem__(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise KeyError(f"no `{name}`: a batch has {', '.join(self.__dict__)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        """B."""
        return self.index.shape[-1]

    def __repr__(self) -> str:
        return f"Batch({len(self)} × {', '.join(self)})"

    def keys(self) -> list[str]:
        """Return the names of its arrays."""
        return list(self.__dict__)

    def torch(self) -> Batch:
        """Return the batch as torch tensors that share its memory, created on first access."""
        return _TorchBatch(self)


class _TorchBatch(Batch):
    """A batch whose arrays become tensors when they are read."""

    def __init__(self, batch: Batch) -> None:
        self._arrays = batch.__dict__
        self._block = None

    def __getattr__(self, name: str) -> Any:
        arrays = self.__dict__.get("_arrays", {})
        if name not in arrays:
            raise AttributeError(f"this batch has no `{name}`: it has {', '.join(arrays)}")
        tensor = self.__dict__[name] = _tensor(arrays[name])
        return tensor

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def keys(self) -> list[str]:
        return list(self._arrays)

    def torch(self) -> Batch:
        return self


def _tensor(array: Any) -> Any:
    import torch

    return _map(torch.from_numpy, array) if isinstance(array, dict) else torch.from_numpy(array)


def _map(function: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _map(function, value) if isinstance(value, dict) else function(value)
        for name, value in values.items()
    }


class BatchBlock:
    """A block of memory with the arrays of one batch.

    Args:
        layout: layout of the buffer.
        size: B, entries or sequences per batch.
        weighted: whether the batch has weights and probabilities.
        has_importance: whether the batch has importance weights.
        steps: T, rows per sequence; 0: single transitions.

    Attributes:
        address: address of the `BatchRecord` for compiled code.
        shared_arrays: all arrays that users may reference.
        idle_refcounts: reference counts of these arrays without any user's reference.
    """

    def __init__(
        self, layout: RowLayout, size: int, weighted: bool, has_importance: bool, steps: int = 0
    ) -> None:
        self.size, self.steps = size, steps
        self.layout = layout
        self._nested = any(len(field.path) > 1 for field in layout.fields)
        extras: list[tuple[str, Any]] = [("index", np.dtype(np.int64))]
        if weighted:
            extras.append(("weight", np.dtype(np.float64)))
            extras.append(("probability", np.dtype(np.float64)))
        if has_importance:
            extras.append(("importance", np.dtype(np.float32)))
        leading: tuple[int, ...] = (size,)
        if steps:
            leading = (steps, size)
            extras.append(("mask", np.dtype(np.bool_)))
        # Fields that are gathered for the first transition of a sequence only.
        is_first_only = [steps > 0 and field.is_memory for field in layout.fields]
        # Allocate the arrays.
        arrays = _contiguous_arrays(
            [
                ((*(leading[-1:] if first else leading), *field.shape), field.dtype)
                for field, first in zip(layout.fields, is_first_only, strict=True)
            ]
            + [(leading, dtype) for _, dtype in extras]
        )
        self.shared_arrays = [arrays[0].base, *arrays]
        # Write the records for compiled code.
        self.copies = np.zeros(len(layout.fields), COPY)
        self.record = np.zeros(1, BATCH)
        num_copies = is_first_only.count(False)
        self.record["num_copies"] = num_copies
        self.record["copies"] = self.copies.ctypes.data
        self.record["num_first_copies"] = len(is_first_only) - num_copies
        self.record["first_copies"] = self.copies[num_copies:].ctypes.data
        positions = np.argsort(np.argsort(is_first_only, kind="stable"))
        self.record["has_importance"] = has_importance
        self.arrays: dict[str, Any] = {}
        for index, field in enumerate(layout.fields):
            parent = self.arrays
            for key in field.path[:-1]:
                parent = parent.setdefault(key, {})
            parent[field.path[-1]] = arrays[index]
            self.copies[positions[index]] = (
                _SOURCES[field.place],
                field.offset if field.place in ("row", "next") else field.pool_index,
                field.size_bytes,
                arrays[index].ctypes.data,
            )
        for index, (name, _) in enumerate(extras, len(layout.fields)):
            self.arrays[name] = arrays[index]
            self.record[name] = arrays[index].ctypes.data
        self.address: int = self.record.ctypes.data
        del arrays
        self.idle_refcounts = list(map(sys.getrefcount, self.shared_arrays))

    def batch(self) -> Batch:
        """Return the arrays as a batch."""
        arrays = _map(lambda array: array, self.arrays) if self._nested else self.arrays
        return Batch(arrays, self)


def _contiguous_arrays(specs: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Return arrays of these shapes and dtypes, all views of one block of memory."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in specs]
    starts = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
    memory = aligned_array(int(starts[-1]), np.uint8)
    return [
        memory[start : start + size].view(dtype).reshape(shape)
        for (shape, dtype), size, start in zip(specs, sizes, starts, strict=False)
    ]


class BatchBlockPool:
    """A pool of memory for batches. It reuses unreferenced blocks."""

    MAX_BLOCKS_PER_SIZE = 4
    MAX_SIZES = 8  # number of batch sizes with stored blocks

    def __init__(
        self, layout: RowLayout, weighted: bool, has_importance: bool, steps: int = 0
    ) -> None:
        self._layout, self._weighted, self._has_importance = layout, weighted, has_importance
        self._steps = steps
        self._blocks: dict[int, list[BatchBlock]] = {}
        # Without the global interpreter lock, reference counts are not exact.
        self._reuse = getattr(sys, "_is_gil_enabled", lambda: True)()

    def find_idle(self, size: int) -> BatchBlock | None:
        """Return an unreferenced block for a batch of this size, if there is one."""
        blocks = self._blocks.get(size) if type(size) is int else None
        if blocks is not None and self._reuse:
            for block in blocks:  # least recently used first
                if list(map(sys.getrefcount, block.shared_arrays)) == block.idle_refcounts:
                    if len(blocks) > 1:
                        blocks.remove(block)
                        blocks.append(block)
                    return block
        return None

    def make(self, size: int) -> BatchBlock:
        """Return a new block for a batch of this size."""
        if size not in self._blocks and len(self._blocks) == self.MAX_SIZES:
            del self._blocks[next(iter(self._blocks))]
        blocks = self._blocks.setdefault(size, [])
        blocks.append(
            BatchBlock(self._layout, size, self._weighted, self._has_importance, self._steps)
        )
        del blocks[: -self.MAX_BLOCKS_PER_SIZE]
        return blocks[-1]

    def block_of(self, batch: Batch, size: int) -> BatchBlock:
        """Return the block of a batch that this pool created.

        Raises:
            ReplayError: the batch is of another size or buffer.
        """
        block = batch._block
        if (
            block is None
            or block.layout is not self._layout
            or (block.size, block.steps) != (size, self._steps)
        ):
            raise ReplayError(
                f"`out` must be a batch of {size} from this buffer, got {batch!r}: draw the first "
                "one without `out`"
            )
        return block
