"""Minibatches of a batch: of rows, or of whole sequences where a network has memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def num_units(batch: Any) -> int:
    """Return how many units there are to be put in order: sequences, or rows."""
    return len(batch.memory if _has_sequences(batch) else batch[0])


def minibatches(batch: Any, order: Tensor, count: int) -> Iterator[Any]:
    """Yield a batch's minibatches of one pass.

    Args:
        batch: a NamedTuple of tensors, (B, …), some None; of sequences (L, S, …), and `memory`,
            (S, M).
        order: int64, of its rows or sequences.
        count: of minibatches.
    """
    size = len(order) // count
    if _has_sequences(batch):
        for some in order.split(size):
            yield taken(batch, some)
        return
    # One gather a pass; its minibatches are then views.
    passes = [None if x is None else x.index_select(0, order).split(size) for x in batch]
    for k in range(count):
        yield type(batch)(*(None if x is None else x[k] for x in passes))


def taken(batch: Any, index: Tensor) -> Any:
    """Return some rows of a batch; or some sequences, (L · S, …), their rows step by step."""
    if not _has_sequences(batch):
        return type(batch)(*(None if x is None else x.index_select(0, index) for x in batch))
    fields = {
        name: None if x is None else x.index_select(1, index).flatten(0, 1)
        for name, x in batch._asdict().items()
        if name != "memory"
    }
    return type(batch)(**fields, memory=batch.memory.index_select(0, index))


def _has_sequences(batch: Any) -> bool:
    """Whether a batch is of sequences, and not of rows: then it says what was remembered."""
    return getattr(batch, "memory", None) is not None
