"""Entries sorted by priority, for sampling by rank.

A sorted list in blocks of at most 512 entries: the greatest priority first, and among equal ones
the lower slot of the ring. A second list has the order of the blocks and is searched by bisection.
An insertion or removal moves half a block, 3 KB. Full blocks are split, small neighbors joined. So
ranks are always exact, unlike in the array-based heap of Schaul et al. (2016, arXiv:1511.05952),
which is sorted only from time to time.

The distribution is P(rank r) = r^−α / H(n) with H(n) = Σ_{r ≤ n} r^−α. Drawing inverts H: by a
table up to rank 1024, beyond it by the Euler–Maclaurin formula, with an error below 10⁻¹².
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.base.numba_tools import jit, move_bytes
from hotloop.replay.native.handle import Handle, random_unit, wide
from hotloop.replay.native.pointers import address_of, advance
from hotloop.types import Array

BLOCK = 512
TABLE_RANKS = 1024


def max_blocks(capacity: int) -> int:
    """Return a sufficient number of blocks: any two neighbors have more than half a block."""
    return capacity // (BLOCK // 4) + 8


def rank_table(alpha: float) -> Array:
    """Return H(0) … H(1024), then `_past_table` and `_integral` at 1024, float64, (1027,)."""
    ranks = np.arange(1, TABLE_RANKS + 1, dtype=np.float64)
    sums = np.cumsum(ranks**-alpha)
    power, last = 1.0 - alpha, float(TABLE_RANKS)
    integral = math.expm1(power * math.log(last)) / power if power else math.log(last)
    past = integral + last**-alpha * (0.5 - alpha / (12.0 * last))
    return np.concatenate([[0.0], sums, [past, integral]])


@jit
def _comes_before(handle: Handle, place: int, key: float, slot: int) -> bool:
    other = handle.block_keys[place]
    if other != key:
        return other > key
    return handle.block_slots[place] < slot


@jit
def _find(handle: Handle, key: float, slot: int) -> tuple[int, int]:
    """Return the position of (key, slot): of its block in the order, and within the block."""
    order, counts = handle.block_order, handle.block_counts
    low, high = 0, handle.num_blocks - 1
    while low < high:  # find the last block whose first entry does not come after (key, slot)
        middle = (low + high + 1) >> 1
        first = order[middle] * BLOCK
        if _comes_before(handle, first, key, slot) or handle.block_slots[first] == slot:
            low = middle
        else:
            high = middle - 1
    block = order[low]
    first, last = 0, wide(counts[block])
    while first < last:
        middle = (first + last) >> 1
        if _comes_before(handle, block * BLOCK + middle, key, slot):
            first = middle + 1
        else:
            last = middle
    return low, first


@jit
def _move(handle: Handle, target: int, source: int, count: int) -> None:
    keys, slots = handle.block_keys, handle.block_slots
    move_bytes(address_of(advance(keys, target)), address_of(advance(keys, source)), count * 8)
    move_bytes(address_of(advance(slots, target)), address_of(advance(slots, source)), count * 4)


@jit
def _new_block(handle: Handle, position: int) -> int:
    """Insert an empty block at a position of the order, and return it."""
    order, num_blocks = handle.block_order, handle.num_blocks
    num_free = handle.num_free_blocks - 1
    block = handle.free_blocks[num_free]
    handle.num_free_blocks = num_free
    address = address_of(advance(order, position))
    move_bytes(address + 4, address, (num_blocks - position) * 4)
    order[position] = block
    handle.block_counts[block] = 0
    handle.num_blocks = num_blocks + 1
    return wide(block)


@jit
def _drop_block(handle: Handle, position: int) -> None:
    order, num_blocks = handle.block_order, handle.num_blocks
    num_free = handle.num_free_blocks
    handle.free_blocks[num_free] = order[position]
    handle.num_free_blocks = num_free + 1
    address = address_of(advance(order, position))
    move_bytes(address, address + 4, (num_blocks - position - 1) * 4)
    handle.num_blocks = num_blocks - 1


@jit
def insert_rank(handle: Handle, slot: int, key: float) -> None:
    """Insert an entry by its priority."""
    handle.ranks_stale = 1
    order, counts = handle.block_order, handle.block_counts
    if handle.num_blocks == 0:
        _new_block(handle, 0)
    position, place = _find(handle, key, slot)
    block = wide(order[position])
    if counts[block] == BLOCK:
        half = BLOCK // 2
        other = _new_block(handle, position + 1)
        _move(handle, other * BLOCK, block * BLOCK + half, half)
        counts[block] = half
        counts[other] = half
        if place > half:
            block, place = other, place - half
    count = wide(counts[block])
    first = block * BLOCK + place
    _move(handle, first + 1, first, count - place)
    handle.block_keys[first] = key
    handle.block_slots[first] = slot
    counts[block] = count + 1


@jit
def _join(handle: Handle, position: int) -> bool:
    """Join a block with the next one if they fit into 3/4 of a block. Return whether they did."""
    order, counts = handle.block_order, handle.block_counts
    if position < 0 or position + 1 >= handle.num_blocks:
        return False
    block, other = wide(order[position]), wide(order[position + 1])
    count, num_others = wide(counts[block]), wide(counts[other])
    if count + num_others > BLOCK * 3 // 4:
        return False
    _move(handle, block * BLOCK + count, other * BLOCK, num_others)
    counts[block] = count + num_others
    _drop_block(handle, position + 1)
    return True


@jit
def remove_rank(handle: Handle, slot: int, key: float) -> None:
    """Remove an entry. `key` is the priority that it was inserted with."""
    handle.ranks_stale = 1
    order, counts = handle.block_order, handle.block_counts
    position, place = _find(handle, key, slot)
    block = wide(order[position])
    count = wide(counts[block]) - 1
    first = block * BLOCK + place
    _move(handle, first, first + 1, count - place)
    counts[block] = count
    if count == 0:
        _drop_block(handle, position)
    elif count < BLOCK // 2 and not _join(handle, position):
        _join(handle, position - 1)


@jit
def greatest_rank(handle: Handle) -> float:
    """Return the greatest priority, −∞ if there are no entries."""
    if handle.num_blocks == 0:
        return -np.inf
    first = wide(handle.block_order[0]) * BLOCK
    return handle.block_keys[first]


@jit
def rebuild_ranks(handle: Handle) -> None:
    """Rebuild the order from all entries, with their weights as priorities."""
    handle.num_blocks = 0
    count = handle.max_blocks
    handle.num_free_blocks = count
    for block in range(count):
        handle.free_blocks[block] = count - 1 - block
    for slot in range(handle.size):
        insert_rank(handle, slot, handle.leaves[slot])


@jit
def _integral(alpha: float, rank: float) -> float:
    """Return ∫ x^−α dx from 1 to a rank."""
    power = 1.0 - alpha
    return math.expm1(power * math.log(rank)) / power if power != 0.0 else math.log(rank)


@jit
def _past_table(alpha: float, rank: float) -> float:
    """Return H(rank) minus a constant, by the Euler–Maclaurin formula."""
    term = rank**-alpha
    return _integral(alpha, rank) + term * 0.5 - alpha * term / (12.0 * rank)


@jit
def sum_over_ranks(handle: Handle, count: int) -> float:
    """Return H(count)."""
    table, alpha = handle.rank_table, handle.rank_alpha
    if count <= TABLE_RANKS:
        return table[count]
    last = table[TABLE_RANKS]
    return last + _past_table(alpha, float(count)) - table[TABLE_RANKS + 1]


@jit
def _find_rank(handle: Handle, target: float, size: int) -> int:
    """Return the least rank r with H(r) > target, at most `size`."""
    table, alpha = handle.rank_table, handle.rank_alpha
    low, high = 1, min(size, TABLE_RANKS)
    if target < table[high]:
        while low < high:
            middle = (low + high) >> 1
            if table[middle] > target:
                high = middle
            else:
                low = middle + 1
        return low
    if size <= TABLE_RANKS:
        return size
    # The first guess from the integral alone is usually off by less than one.
    power = 1.0 - alpha
    beyond = target - table[TABLE_RANKS] + table[TABLE_RANKS + 2]
    guess = math.exp(beyond if power == 0.0 else math.log1p(power * beyond) / power)
    rank = max(int(guess), TABLE_RANKS + 1) if guess < size else size
    while rank < size and sum_over_ranks(handle, rank) <= target:
        rank += 1
    while rank > TABLE_RANKS + 1 and sum_over_ranks(handle, rank - 1) > target:
        rank -= 1
    return rank


@jit
def draw_ranks(handle: Handle, count: int) -> None:
    """Draw `count` entries by rank, independently or one from each of `count` equal strata.

    Slots are written to `batch_slots` and ranks, from 1, to `numbers`.
    """
    slots, ranks = handle.batch_slots, handle.numbers
    order, counts = handle.block_order, handle.block_counts
    num_before, num_blocks = handle.block_before, handle.num_blocks
    if handle.ranks_stale:
        total = 0
        for position in range(num_blocks):
            num_before[position] = total
            total += wide(counts[order[position]])
        handle.ranks_stale = 0
    size = handle.size
    rank_sum = sum_over_ranks(handle, size)
    stratified = handle.stratified != 0
    for row in range(count):
        unit = random_unit(handle)
        if stratified:
            unit = (row + unit) / count
        rank = _find_rank(handle, unit * rank_sum, size)
        low, high = 0, num_blocks - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if num_before[middle] < rank:
                low = middle
            else:
                high = middle - 1
        place = order[low] * BLOCK + rank - 1 - num_before[low]
        slots[row] = wide(handle.block_slots[place])
        ranks[row] = rank
