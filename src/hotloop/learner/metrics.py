"""Metrics of updates, stored on the device until they are reported."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Metrics:
    """Rows of metrics by kind of update, with their sums, means and checks for NaN and infinity."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._updates: dict[str, list[int]] = {}
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def clear(self) -> None:
        """Delete all metrics."""
        self._sums.clear()
        self._clear_rows()

    def add(self, kind: str, names: tuple[str, ...], row: Tensor, update: int) -> None:
        """Store the metrics of one update.

        Args:
            kind: name of the kind of update. All updates of a kind have the same metrics.
            names: names of the M metrics.
            row: the metrics, float32, (M,).
            update: number of the update.
        """
        self._names[kind] = names
        self._rows.setdefault(kind, []).append(row)
        self._updates.setdefault(kind, []).append(update)

    def extend(
        self, kind: str, names: tuple[str, ...], rows: Tensor, updates: Sequence[int]
    ) -> None:
        """Store the metrics of U updates in order, rows (U, M). See `add` for the arguments."""
        self._names[kind] = names
        self._rows.setdefault(kind, []).extend(rows)
        self._updates.setdefault(kind, []).extend(updates)

    def pop(self) -> tuple[tuple[str, ...], Tensor]:
        """Return and delete the names and rows, float32, (updates, M), of the only kind."""
        ((kind, rows),) = self._rows.items()
        stacked = torch.stack(rows)
        self._clear_rows()
        return self._names[kind], stacked

    def accumulate(self) -> None:
        """Replace all rows by their sums."""
        for kind, rows in self._rows.items():
            total = torch.stack(rows).sum(0, dtype=torch.float64)
            old_total, count = self._sums.get(kind, (0.0, 0))
            self._sums[kind] = total + old_total, count + len(rows)
        self._clear_rows()

    def means(self) -> dict[str, float]:
        """Return the means over all updates since the last `clear`, by name."""
        self.accumulate()
        means: dict[str, float] = {}
        for kind, (total, count) in self._sums.items():
            means |= dict(zip(self._names[kind], (total / count).tolist(), strict=True))
        return means

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """Return the first update with NaN or infinity and its non-finite metrics, or None.

        Rows that `accumulate` has replaced are not checked.
        """
        candidates: list[tuple[int, list[str]]] = []
        for kind, rows in self._rows.items():
            bad = ~torch.stack(rows).isfinite()
            if bad.any():
                first = int(bad.any(1).int().argmax())
                flags = zip(self._names[kind], bad[first].tolist(), strict=True)
                names = [name for name, is_bad in flags if is_bad]
                candidates.append((self._updates[kind][first], names))
        return min(candidates, default=None)

    def _clear_rows(self) -> None:
        self._rows.clear()
        self._updates.clear()
