"""Sums over blocks of runs, added in the order of runs.

Blocks are added to their chunk, and chunks to the total. So every bit is the same for any order in
which blocks finish, and for runs that are added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.bandits.results import RunSums
from hotloop.bandits.run_settings import BLOCK, CHUNK
from hotloop.types import Array

MAX_FINAL_REGRETS = 4 * CHUNK


@dataclass(kw_only=True)
class BlockSums:
    """Sums over the runs of one block or several consecutive ones.

    Attributes:
        agents: sums of each agent.
        products: float64, (agents, agents, 5), see `BanditComparison`. Empty if not requested.
        final_regrets: float64, (agents, runs), of at most `MAX_FINAL_REGRETS` runs.
        run_values: float64, (agents, 5, runs): `QUANTITIES` of each run of one block. None for
            several blocks.
    """

    agents: list[RunSums]
    products: Array
    final_regrets: Array
    run_values: Array | None = None

    def add(self, later: BlockSums) -> None:
        """Add the runs that follow."""
        self.run_values = None
        self.agents = [sums + more for sums, more in zip(self.agents, later.agents, strict=True)]
        self.products += later.products
        if self.final_regrets.shape[1] < MAX_FINAL_REGRETS:
            regrets = self.final_regrets, later.final_regrets
            self.final_regrets = np.concatenate(regrets, axis=1)


def join_agents(parts: Sequence[BlockSums], *, has_products: bool) -> BlockSums:
    """Join the sums of a block from separate games, as if their agents had played together."""
    values = np.concatenate([part.run_values for part in parts if part.run_values is not None])
    products = [(rows * values).sum(axis=2) for rows in values] if has_products else []
    return BlockSums(
        agents=[sums for part in parts for sums in part.agents],
        products=np.array(products),
        final_regrets=np.concatenate([part.final_regrets for part in parts]),
        run_values=values,
    )


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
