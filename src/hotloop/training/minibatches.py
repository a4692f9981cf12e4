"""Minibatches of rows, or of whole sequences for recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def num_units(batch: Any) -> int:
    """Return the number of sequences of a batch, or of rows if it has no sequences."""
    return len(batch.memory if _has_sequences(batch) else batch[0])


def minibatches(batch: Any, order: Tensor, count: int) -> Iterator[Any]:
    """Yield the minibatches of one pass over a batch.

    Args:
        batch: a NamedTuple of tensors, (B, …), or None. With sequences, tensors are (L, S, …) and
            `memory` is (S, M).
        order: the order of rows or sequences, int64.
    """
    size = len(order) // count
    if _has_sequences(batch):
        for index in order.split(size):
            yield select_rows(batch, index)
        return
    # One gather for each pass: the minibatches are views of it.
    fields = [None if x is None else x.index_select(0, order).split(size) for x in batch]
    for k in range(count):
        yield type(batch)(*(None if x is None else x[k] for x in fields))


def select_rows(batch: Any, index: Tensor) -> Any:
    """Return rows of a batch by index, or sequences as rows in order of steps, (L · S, …)."""
    if not _has_sequences(batch):
        return type(batch)(*(None if x is None else x.index_select(0, index) for x in batch))
    fields = {
        name: None if x is None else x.index_select(1, index).flatten(0, 1)
        for name, x in batch._asdict().items()
        if name != "memory"
    }
    return type(batch)(**fields, memory=batch.memory.index_select(0, index))


def _has_sequences(batch: Any) -> bool:
    """Return whether a batch holds sequences, which have a hidden state `memory`."""
    return getattr(batch, "memory", None) is not None
