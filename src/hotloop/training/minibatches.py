"""Passes over a batch in minibatches of rows, or of whole sequences for recurrent networks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hotloop.base.transfer import to_host
from hotloop.errors import NonFiniteUpdate
from hotloop.learner import Learner
from hotloop.training.options import OnPolicyOptions
from hotloop.types import Array


class Passes:
    """Several passes over each batch, in minibatches of random order.

    Args:
        active: a tensor of the learner's state, bool, 0-d, which an update sets to False if later
            updates of the batch must change nothing; None if no update does so.

    Attributes:
        metrics: the metrics of the last batch, averaged over the minibatches that changed the
            state; their number, `num_updates`; and the scheduled hyper-parameters.
    """

    def __init__(self, learner: Learner, config: OnPolicyOptions, active: Tensor | None) -> None:
        self.metrics: dict[str, float] = {}
        self._learner, self._config, self._active = learner, config, active

    def minibatches(self, batch: Any) -> Generator[Any, Any, None]:
        """Yield the minibatches of all passes over a batch.

        Raises:
            NonFiniteUpdate: a metric or a parameter is NaN or infinite after the last pass.
        """
        learner, config, active = self._learner, self._config, self._active
        if active is not None:
            active.fill_(True)
        learner.metrics.clear()
        active_flags: list[Tensor] = []
        orders: list[Tensor] = []
        for _ in range(config.update_epochs):
            order = learner.rng.permutation(num_units(batch))
            orders.append(learner.upload({"order": order})["order"])
            for minibatch in minibatches(batch, orders[-1], config.num_minibatches):
                yield minibatch
                if active is not None:
                    active_flags.append(active.clone())
            # The only synchronization of a pass, needed only if updates may stop early.
            if active is not None and not active.item():
                break
        # Check and average the metrics of all minibatches.
        names, rows = learner.metrics.pop()
        was_active = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if active_flags:
            was_active = torch.stack(active_flags)
        # An inactive minibatch may have an infinite loss, since it changed nothing.
        is_bad = was_active[:, None] & ~rows.isfinite()
        bad_parts = learner.non_finite()
        if is_bad.any() or bad_parts:
            size = num_units(batch) // config.num_minibatches
            raise _first_non_finite(is_bad, names, bad_parts, batch, torch.cat(orders), size)
        rows = rows[was_active]
        self.metrics = dict(zip(names, rows.mean(0).tolist(), strict=True))
        self.metrics |= {"num_updates": float(len(rows)), **learner.hyper.reported_values()}


def present_fields(batch: Any) -> dict[str, Any]:
    """Return the fields of a NamedTuple that are not None, by name."""
    return {name: x for name, x in batch._asdict().items() if x is not None}


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
    # Gather once for each pass: the minibatches are views of the result.
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


def _first_non_finite(
    is_bad: Tensor,
    names: Sequence[str],
    bad_parts: Sequence[str],
    batch: Any,
    order: Tensor,
    size: int,
) -> NonFiniteUpdate:
    """Return the first non-finite update, or the last update. `is_bad` is bool, (updates, M)."""
    # `order` has the rows or sequences of the minibatches, one pass after the other.
    update = int(is_bad.any(1).int().argmax()) if is_bad.any() else len(is_bad) - 1
    bad_names = [name for name, bad in zip(names, is_bad[update].tolist(), strict=True) if bad]
    index = order[update * size : (update + 1) * size]
    rows: dict[str, Array] = {
        name: to_host(x) for name, x in present_fields(select_rows(batch, index)).items()
    }
    return NonFiniteUpdate(bad_names or list(bad_parts), update + 1, rows)
