"""Plans: agents and environments as the kernels see them, in parts, parameters and memory.

An agent's file and an environment's class make theirs; nothing here needs Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.kernels.layout import LANES, TOGETHER
from hotloop.system.memory import need_memory
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.numba_tools import Part

_PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an agent or an environment is to the kernels.

    Attributes:
        parts: an agent's start, choose, update; an environment's start, advance, give_reward.
        parameters: words from `layout.PARAMETERS` on: whole numbers as int64, others as float64.
        state_bytes: memory of its own.
        needs_unit: whether rewards must lie in 0 … 1.
        needs_policy: whether the policy's words are to be prepared for all lanes.
        arrays: what parameters are addresses of; kept alive with the block.
        has_walk: an environment whose true values differ from step to step; its windows hold
            them for each step.
        has_padding: whether those lie in whole fours of arms.
    """

    parts: tuple[Part, Part, Part]
    parameters: tuple[float | int, ...] = ()
    state_bytes: int = 0
    needs_policy: bool = False
    needs_unit: bool = False
    arrays: tuple[Array, ...] = ()
    has_walk: bool = False
    has_padding: bool = False


def num_rows(num_arms: int) -> int:
    """Rows of an array of scores: arms, and what makes them whole fives."""
    return -(-num_arms // TOGETHER) * TOGETHER


def num_cells(num_arms: int, *, fours: bool = False) -> int:
    """Cells of such an array, one for each row and lane; of whole fours of rows if asked for."""
    rows = num_rows(num_arms)
    return (-(-rows // 4) * 4 if fours else rows) * LANES


def table(size: int, function: Callable[[Array], Any], *, at_zero: float = 0.0) -> Array:
    """A function of 0 … `size`, float32, made in pieces: all at once takes five times as much.

    Raises:
        ConfigError: it does not fit into memory.
    """
    need_memory(4 * size, f"tables for {size:,} steps", "lower `num_steps`")
    found = np.full(size + 1, at_zero, np.float32)
    for start in range(1, size + 1, _PIECE):
        stop = min(start + _PIECE, size + 1)
        found[start:stop] = function(np.arange(start, stop))
    return found
