"""Plans of agents and environments for the kernels: compiled parts, parameters and memory.

This module does not need Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.kernels.layout import LANES, ROW_GROUP
from hotloop.base.memory import require_memory
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.base.numba_tools import CompiledFunction

_TABLE_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """The parts, parameters and memory of an agent or an environment in the kernels.

    Attributes:
        parts: start, choose, update of an agent, or start, advance, give_reward of an environment.
        parameters: words from `layout.PARAMETERS` on. Integers become int64, others float64.
        state_bytes: size of the state, in bytes.
        needs_unit_rewards: whether rewards must lie in [0, 1].
        needs_policy_words: whether the kernels prepare the policy's random words for all lanes.
        arrays: arrays whose addresses are parameters. The block keeps them alive.
        is_nonstationary: whether an environment's true values differ from step to step. Its windows
            then have values for each step.
        has_padding: whether the number of rows of these values is rounded up to a multiple of four.
    """

    parts: tuple[CompiledFunction, CompiledFunction, CompiledFunction]
    parameters: tuple[float | int, ...] = ()
    state_bytes: int = 0
    needs_policy_words: bool = False
    needs_unit_rewards: bool = False
    arrays: tuple[Array, ...] = ()
    is_nonstationary: bool = False
    has_padding: bool = False


def num_rows(num_arms: int) -> int:
    """Return the rows of an array of scores: the arms, rounded up to a multiple of `ROW_GROUP`."""
    return -(-num_arms // ROW_GROUP) * ROW_GROUP


def num_cells(num_arms: int, *, has_padding: bool = False) -> int:
    """Return the cells of an array of scores. With padding, rows are a multiple of four."""
    rows = num_rows(num_arms)
    return (-(-rows // 4) * 4 if has_padding else rows) * LANES


def make_table(size: int, function: Callable[[Array], Any], *, at_zero: float = 0.0) -> Array:
    """Return a function of 0 … `size` as float32. Computing it in one piece needs 5 × the memory.

    Raises:
        ConfigError: The table does not fit into memory.
    """
    require_memory(4 * size, f"tables for {size:,} steps", "lower `num_steps`")
    values = np.full(size + 1, at_zero, np.float32)
    for start in range(1, size + 1, _TABLE_CHUNK):
        stop = min(start + _TABLE_CHUNK, size + 1)
        values[start:stop] = function(np.arange(start, stop))
    return values
