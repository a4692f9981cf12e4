"""What updates say of themselves, until it is reported."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Metrics:
    """What updates said of themselves, kept where the tensors are until it is reported.

    Args:
        names: what the numbers are, by kind of update.
    """

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        self._names = names
        self._rows: dict[str, list[Tensor]] = {}
        self._updates: dict[str, list[int]] = {}
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._sums: dict[str, tuple[Tensor, int]] = {}
        self._rows = {kind: [] for kind in self._names}
        self._updates = {kind: [] for kind in self._names}

    def fold(self) -> None:
        """Keep the sums of what there is in place of it all."""
        for kind, rows in self._rows.items():
            if rows:
                total = torch.stack(rows).sum(0, dtype=torch.float64)
                before, count = self._sums.get(kind, (0.0, 0))
                self._sums[kind] = total + before, count + len(rows)
        self._rows = {kind: [] for kind in self._names}
        self._updates = {kind: [] for kind in self._names}

    def add(self, kind: str, row: Tensor, update: int) -> None:
        """Keep the numbers of one update."""
        self._rows[kind].append(row)
        self._updates[kind].append(update)

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
            if not rows:
                continue
            bad = ~torch.stack(rows).isfinite()
            if bad.any():
                first = int(bad.any(1).int().argmax())
                names = [
                    name
                    for name, is_bad in zip(self._names[kind], bad[first], strict=True)
                    if is_bad
                ]
                found.append((self._updates[kind][first], names))
        return min(found, default=None)
