"""Metrics of updates, kept where the tensors are until they are reported."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Metrics:
    """Rows of metrics by kind of update: summed, averaged, looked through for NaN and infinity."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._updates: dict[str, list[int]] = {}
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def clear(self) -> None:
        """Forget all of them."""
        self._sums.clear()
        self._forget_rows()

    def add(self, kind: str, names: tuple[str, ...], row: Tensor, update: int) -> None:
        """Keep the numbers of one update.

        Args:
            kind: of update; every kind has names of its own.
            names: M of them.
            row: float32, (M,).
            update: its number.
        """
        self._names[kind] = names
        self._rows.setdefault(kind, []).append(row)
        self._updates.setdefault(kind, []).append(update)

    def extend(
        self, kind: str, names: tuple[str, ...], rows: Tensor, updates: Sequence[int]
    ) -> None:
        """Keep the numbers of U updates, rows (U, M), in order; the arguments are as of `add`."""
        self._names[kind] = names
        self._rows.setdefault(kind, []).extend(rows)
        self._updates.setdefault(kind, []).extend(updates)

    def pop(self) -> tuple[tuple[str, ...], Tensor]:
        """Return the names and the rows, float32, (updates, M), of the one kind that there is, and
        forget them."""
        ((kind, rows),) = self._rows.items()
        stacked = torch.stack(rows)
        self._forget_rows()
        return self._names[kind], stacked

    def fold(self) -> None:
        """Keep the sums of what there is in place of it all."""
        for kind, rows in self._rows.items():
            total = torch.stack(rows).sum(0, dtype=torch.float64)
            before, count = self._sums.get(kind, (0.0, 0))
            self._sums[kind] = total + before, count + len(rows)
        self._forget_rows()

    def means(self) -> dict[str, float]:
        """By name, over all updates since the last `clear`."""
        self.fold()
        means: dict[str, float] = {}
        for kind, (total, count) in self._sums.items():
            means |= dict(zip(self._names[kind], (total / count).tolist(), strict=True))
        return means

    def first_bad(self) -> tuple[int, list[str]] | None:
        """The number of the first update that was not finite, and what was not; None: all were.

        What was folded is not looked at again.
        """
        found: list[tuple[int, list[str]]] = []
        for kind, rows in self._rows.items():
            bad = ~torch.stack(rows).isfinite()
            if bad.any():
                first = int(bad.any(1).int().argmax())
                named = zip(self._names[kind], bad[first].tolist(), strict=True)
                names = [name for name, is_bad in named if is_bad]
                found.append((self._updates[kind][first], names))
        return min(found, default=None)

    def _forget_rows(self) -> None:
        self._rows.clear()
        self._updates.clear()
