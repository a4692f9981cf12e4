"""Sums over blocks of runs, added in the order of runs.

Blocks are added to their chunk, and chunks to the total. So every bit is the same for any order in
which blocks finish, and for runs that are added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.results import RunSums
from hotloop.types import Array

BLOCK = LANES
CHUNK = 8 * BLOCK
MAX_FINAL_REGRETS = 4 * CHUNK


@dataclass(kw_only=True)
class BlockSums:
    """Sums over the runs of one block or several consecutive ones.

    Attributes:
        num_runs: number of runs.
        curves: float64, (agents, 6, P), see `RunSums`.
        totals: float64, (agents, 2, 5), see `RunSums`.
        products: float64, (agents, agents, 5), see `BanditComparison`. Empty if not requested.
        pulls: int64, (agents, P, k), or empty.
        final_regrets: float64, (agents, runs), of at most `MAX_FINAL_REGRETS` runs.
        run_values: float64, (agents, 5, runs): `QUANTITIES` of each run of one block. None for
            several blocks.
    """

    num_runs: int
    curves: Array
    totals: Array
    products: Array
    pulls: Array
    final_regrets: Array
    run_values: Array | None = None

    def add(self, later: BlockSums) -> None:
        """Add the runs that follow."""
        self.run_values = None
        self.num_runs += later.num_runs
        self.curves += later.curves
        self.totals += later.totals
        self.products += later.products
        self.pulls += later.pulls
        if self.final_regrets.shape[1] < MAX_FINAL_REGRETS:
            regrets = self.final_regrets, later.final_regrets
            self.final_regrets = np.concatenate(regrets, axis=1)

    def sums(self, agent_index: int) -> RunSums:
        """Return the sums of one agent."""
        return RunSums(
            num_runs=self.num_runs,
            curve=self.curves[agent_index],
            totals=self.totals[agent_index],
            arm_pulls=self.pulls[agent_index] if len(self.pulls) else None,
        )


def join_agents(parts: Sequence[BlockSums], *, has_products: bool) -> BlockSums:
    """Join the sums of a block from separate games, as if their agents had played together."""
    block = parts[0]
    if len(parts) > 1:
        block = BlockSums(
            num_runs=block.num_runs,
            curves=np.concatenate([part.curves for part in parts]),
            totals=np.concatenate([part.totals for part in parts]),
            products=block.products,
            pulls=np.concatenate([part.pulls for part in parts]),
            final_regrets=np.concatenate([part.final_regrets for part in parts]),
            run_values=np.concatenate(
                [part.run_values for part in parts if part.run_values is not None]
            ),
        )
    if has_products and block.run_values is not None:
        block.products = np.stack(
            [(values * block.run_values).sum(axis=2) for values in block.run_values]
        )
    return block


class OrderedSum:
    """A total of blocks that arrive in any order and are added in the order of runs."""

    def __init__(self) -> None:
        self._total: BlockSums | None = None
        self._chunk: BlockSums | None = None
        self._pending: dict[int, BlockSums] = {}
        self._next_index = 0

    def add(self, index: int, block: BlockSums) -> None:
        """Add the block with this index, from 0."""
        self._pending[index] = block
        while self._next_index in self._pending:
            if self._next_index % (CHUNK // BLOCK) == 0:
                self._close_chunk()
            self._chunk = _extend(self._chunk, self._pending.pop(self._next_index))
            self._next_index += 1

    def _close_chunk(self) -> None:
        if self._chunk is not None:
            self._total = _extend(self._total, self._chunk)
            self._chunk = None

    def result(self) -> BlockSums:
        """Return the total, after the last block was added."""
        self._close_chunk()
        assert self._total is not None
        assert not self._pending
        return self._total


def _extend(total: BlockSums | None, later: BlockSums) -> BlockSums:
    if total is None:
        return later
    total.add(later)
    return total
