"""Batches that `sample` returns, and their memory, used again once nobody looks at it any more."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotloop.errors import ReplayError
from hotloop.replay.native.gather import FROM_NEXT, FROM_POOL, FROM_POOL_NEXT, FROM_ROW
from hotloop.replay.native.handle import COPY, ORDER
from hotloop.replay.storage.layout import Layout
from hotloop.replay.storage.memory import aligned
from hotloop.types import Array

_SOURCES = {"row": FROM_ROW, "next": FROM_NEXT, "apart": FROM_POOL, "apart_next": FROM_POOL_NEXT}


class Batch:
    """B transitions, an attribute a field: `batch.obs` is (B, *obs_shape).

    A field that was declared as a dictionary is one here. Of `Sequences` all but `memory` is
    (T, B, …). Besides there are

    Attributes:
        index: int64, (B,), the entries' numbers, for `update_weights`.
        mask: bool, (T, B), which transitions to learn from. `Sequences` only.
        weight: float64, (B,), what each weighs. Weighted samplers only, as the next.
        probability: float64, (B,), of each in one draw.
        importance: float32, (B,), importance-sampling weights, at most 1. `Prioritized` and
            `RankBased` only.
    """

    __slots__ = ("__dict__", "_block")  # so that the memory behind it is none of its attributes
    _block: Block | None

    def __init__(self, arrays: dict[str, Any], block: Block | None = None) -> None:
        self.__dict__.update(arrays)
        self._block = block

    def __getattr__(self, name: str) -> Any:  # only what is not there comes here
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
        """The names of what it has."""
        return list(self.__dict__)

    def torch(self) -> Batch:
        """The same, as torch tensors that share its memory, made when they are first asked for."""
        return _TorchBatch(self)


class _TorchBatch(Batch):
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
        """The names of what it has."""
        return list(self._arrays)

    def torch(self) -> Batch:
        """Itself."""
        return self


def _tensor(array: Any) -> Any:
    import torch

    return _mapped(torch.from_numpy, array) if isinstance(array, dict) else torch.from_numpy(array)


def _mapped(function: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _mapped(function, value) if isinstance(value, dict) else function(value)
        for name, value in values.items()
    }


class Block:
    """Memory for batches of one size.

    Args:
        layout: of the buffer.
        size: B.
        weighted: whether there are weights and probabilities.
        has_importance: whether there are importance weights.
        steps: T of sequences; 0: each transition stands alone.

    Attributes:
        address: of what the jitted code is told to fill.
        watched: everything that a user may hold of it.
        unused: how often each of these is referred to where nobody does.
    """

    def __init__(
        self, layout: Layout, size: int, weighted: bool, has_importance: bool, steps: int = 0
    ) -> None:
        self.size, self.steps = size, steps
        self.layout = layout
        self._nested = any(len(one.path) > 1 for one in layout.fields)
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
        # What is wanted of a sequence's first transition alone.
        firsts = [steps > 0 and one.is_memory for one in layout.fields]
        arrays = _side_by_side(
            [
                ((*(leading[-1:] if first else leading), *one.shape), one.dtype)
                for one, first in zip(layout.fields, firsts, strict=True)
            ]
            + [(leading, dtype) for _, dtype in extras]
        )
        self.watched = [arrays[0].base, *arrays]
        self.copies = np.zeros(len(layout.fields), COPY)
        self.order = np.zeros(1, ORDER)
        num_copies = firsts.count(False)
        self.order["num_copies"] = num_copies
        self.order["copies"] = self.copies.ctypes.data
        self.order["num_firsts"] = len(firsts) - num_copies
        self.order["firsts"] = self.copies[num_copies:].ctypes.data
        places = np.argsort(np.argsort(firsts, kind="stable"))
        self.order["has_importance"] = has_importance
        self.arrays: dict[str, Any] = {}
        for number, one in enumerate(layout.fields):
            inside = self.arrays
            for key in one.path[:-1]:
                inside = inside.setdefault(key, {})
            inside[one.path[-1]] = arrays[number]
            self.copies[places[number]] = (
                _SOURCES[one.place],
                one.offset if one.place in ("row", "next") else one.apart,
                one.size_bytes,
                arrays[number].ctypes.data,
            )
        for number, (name, _) in enumerate(extras, len(layout.fields)):
            self.arrays[name] = arrays[number]
            self.order[name] = arrays[number].ctypes.data
        self.address: int = self.order.ctypes.data
        del arrays
        self.unused = list(map(sys.getrefcount, self.watched))

    def batch(self) -> Batch:
        """Its arrays, as a user gets them."""
        arrays = _mapped(lambda array: array, self.arrays) if self._nested else self.arrays
        return Batch(arrays, self)


def _side_by_side(wanted: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Arrays in one piece of memory, which is the base of each."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
    starts = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
    memory = aligned(int(starts[-1]), np.uint8)
    return [
        memory[start : start + size].view(dtype).reshape(shape)
        for (shape, dtype), size, start in zip(wanted, sizes, starts, strict=False)
    ]


class Blocks:
    """Hands out memory for batches, the same again where that is safe."""

    KEPT = 4  # blocks of one size
    SIZES = 8  # that are remembered

    def __init__(
        self, layout: Layout, weighted: bool, has_importance: bool, steps: int = 0
    ) -> None:
        self._layout, self._weighted, self._has_importance = layout, weighted, has_importance
        self._steps = steps
        self._blocks: dict[int, list[Block]] = {}
        # Without the interpreter's lock, counts of references are not exact.
        self._reuse = getattr(sys, "_is_gil_enabled", lambda: True)()

    def take(self, size: int) -> Block | None:
        """Memory for a batch of this size that is there and nobody looks at."""
        blocks = self._blocks.get(size) if type(size) is int else None
        if blocks is not None and self._reuse:
            for block in blocks:  # the one that was used longest ago comes first
                if list(map(sys.getrefcount, block.watched)) == block.unused:
                    if len(blocks) > 1:
                        blocks.remove(block)
                        blocks.append(block)
                    return block
        return None

    def make(self, size: int) -> Block:
        """New memory for a batch of this size."""
        if size not in self._blocks and len(self._blocks) == self.SIZES:
            del self._blocks[next(iter(self._blocks))]
        blocks = self._blocks.setdefault(size, [])
        blocks.append(Block(self._layout, size, self._weighted, self._has_importance, self._steps))
        del blocks[: -self.KEPT]
        return blocks[-1]

    def own(self, batch: Batch, size: int) -> Block:
        """The memory of a batch that was handed out here.

        Raises:
            ReplayError: it is of another size or another buffer.
        """
        block = batch._block
        if (
            block is None
            or block.layout is not self._layout
            or (block.size, block.steps) != (size, self._steps)
        ):
            raise ReplayError(
                f"`out` must be a batch of {size} that this buffer gave, got {batch!r}: take "
                "the first one without `out`"
            )
        return block
