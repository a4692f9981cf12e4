"""Sums of blocks of runs, added up in the order of runs.

Block by block within a chunk, from zero, then chunk by chunk: the same bits in whatever order
blocks end, and for runs that are added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.results import Sums
from hotloop.types import Array

BLOCK = LANES
CHUNK = 8 * BLOCK
MAX_FINAL_REGRETS = 4 * CHUNK


@dataclass(kw_only=True)
class Folded:
    """What one block, or several in order, came to.

    Attributes:
        num_runs: how many runs are in it.
        curves: float64, (agents, 6, P); see `Sums`.
        totals: float64, (agents, 2, 5); see `Sums`.
        products: float64, (agents, agents, 5); see `Comparison`. Empty where nobody compares.
        pulls: int64, (agents, P, k), or empty.
        final_regrets: float64, (agents, runs), of `MAX_FINAL_REGRETS` runs at most.
        ends: float64, (agents, 5, runs): what every run of one block came to; None for several.
    """

    num_runs: int
    curves: Array
    totals: Array
    products: Array
    pulls: Array
    final_regrets: Array
    ends: Array | None = None

    def add(self, later: Folded) -> None:
        """Take in the runs that come next."""
        self.ends = None
        self.num_runs += later.num_runs
        self.curves += later.curves
        self.totals += later.totals
        self.products += later.products
        self.pulls += later.pulls
        if self.final_regrets.shape[1] < MAX_FINAL_REGRETS:
            regrets = self.final_regrets, later.final_regrets
            self.final_regrets = np.concatenate(regrets, axis=1)

    def sums(self, which: int) -> Sums:
        """Those of one agent."""
        return Sums(
            num_runs=self.num_runs,
            curve=self.curves[which],
            totals=self.totals[which],
            arm_pulls=self.pulls[which] if len(self.pulls) else None,
        )


def side_by_side(games: Sequence[Folded], *, has_products: bool) -> Folded:
    """One block of games that were played apart, as if their agents had played together."""
    block = games[0]
    if len(games) > 1:
        block = Folded(
            num_runs=block.num_runs,
            curves=np.concatenate([one.curves for one in games]),
            totals=np.concatenate([one.totals for one in games]),
            products=block.products,
            pulls=np.concatenate([one.pulls for one in games]),
            final_regrets=np.concatenate([one.final_regrets for one in games]),
            ends=np.concatenate([one.ends for one in games if one.ends is not None]),
        )
    if has_products and block.ends is not None:
        block.products = np.stack([(one * block.ends).sum(axis=2) for one in block.ends])
    return block


class Fold:
    """Blocks, in whatever order they come, added in order."""

    def __init__(self) -> None:
        self._whole: Folded | None = None
        self._chunk: Folded | None = None
        self._waiting: dict[int, Folded] = {}
        self._next = 0

    def add(self, index: int, block: Folded) -> None:
        """Take in the block of that number, counted from 0."""
        self._waiting[index] = block
        while self._next in self._waiting:
            if self._next % (CHUNK // BLOCK) == 0:
                self._close_chunk()
            self._chunk = _joined(self._chunk, self._waiting.pop(self._next))
            self._next += 1

    def _close_chunk(self) -> None:
        if self._chunk is not None:
            self._whole = _joined(self._whole, self._chunk)
            self._chunk = None

    def result(self) -> Folded:
        """All of them, once every block is there."""
        self._close_chunk()
        assert self._whole is not None
        assert not self._waiting
        return self._whole


def _joined(one: Folded | None, later: Folded) -> Folded:
    if one is None:
        return later
    one.add(later)
    return one
