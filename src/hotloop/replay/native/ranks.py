"""Entries in the order of their priorities, for sampling by rank.

A sorted list in blocks of at most 512: the greatest priority first, of equal ones the lower slot of
the ring. The order of the blocks is a list of its own, searched by bisection. To insert or to
remove moves half a block, 3 KB; full blocks are split, small neighbours joined. So ranks are exact
at any moment; the array-based heap of Schaul et al. (2016, arXiv:1511.05952) is sorted now and
then.

The law is P(rank r) = r^−α / H(n) with H(n) = Σ_{r ≤ n} r^−α, drawn by inverting H: from a table up
to rank 1024, beyond it by the Euler–Maclaurin formula, whose error is below 10⁻¹² there.
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.numba_tools import jit, move_bytes
from hotloop.replay.native.handle import Handle, random_unit, wide
from hotloop.replay.native.pointers import address_of, moved
from hotloop.types import Array

BLOCK = 512
TABLE_RANKS = 1024


def max_blocks(capacity: int) -> int:
    """Enough: any two neighbours hold more than half a block."""
    return capacity // (BLOCK // 4) + 8


def rank_table(alpha: float) -> Array:
    """H(0) … H(1024), and two more: what `_past_table` and `_integral` are at 1024. float64."""
    ranks = np.arange(1, TABLE_RANKS + 1, dtype=np.float64)
    sums = np.cumsum(ranks**-alpha)
    power, last = 1.0 - alpha, float(TABLE_RANKS)
    integral = math.expm1(power * math.log(last)) / power if power else math.log(last)
    past = integral + last**-alpha * (0.5 - alpha / (12.0 * last))
    return np.concatenate([[0.0], sums, [past, integral]])


@jit
def _comes_before(handle: Handle, place: int, key: float, slot: int) -> bool:
    """Whether the entry at a place of the blocks stands before (key, slot)."""
    there = handle.block_keys[place]
    if there != key:
        return there > key
    return handle.block_slots[place] < slot


@jit
def _find(handle: Handle, key: float, slot: int) -> tuple[int, int]:
    """Where (key, slot) belongs: which block of the order, and the place in it."""
    order, counts = handle.block_order, handle.block_counts
    low, high = 0, handle.num_blocks - 1
    while low < high:  # the last block whose first entry does not come after it
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
    """Move entries from one place of the blocks to another."""
    keys, slots = handle.block_keys, handle.block_slots
    move_bytes(address_of(moved(keys, target)), address_of(moved(keys, source)), count * 8)
    move_bytes(address_of(moved(slots, target)), address_of(moved(slots, source)), count * 4)


@jit
def _new_block(handle: Handle, position: int) -> int:
    """An empty block, put at a position of the order."""
    order, num_blocks = handle.block_order, handle.num_blocks
    num_free = handle.num_free_blocks - 1
    block = handle.free_blocks[num_free]
    handle.num_free_blocks = num_free
    here = address_of(moved(order, position))
    move_bytes(here + 4, here, (num_blocks - position) * 4)
    order[position] = block
    handle.block_counts[block] = 0
    handle.num_blocks = num_blocks + 1
    return wide(block)


@jit
def _drop_block(handle: Handle, position: int) -> None:
    """Take an empty block out of the order."""
    order, num_blocks = handle.block_order, handle.num_blocks
    num_free = handle.num_free_blocks
    handle.free_blocks[num_free] = order[position]
    handle.num_free_blocks = num_free + 1
    here = address_of(moved(order, position))
    move_bytes(here, here + 4, (num_blocks - position - 1) * 4)
    handle.num_blocks = num_blocks - 1


@jit
def insert_rank(handle: Handle, slot: int, key: float) -> None:
    """Put an entry where its priority belongs."""
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
    """Join a block with the one after it, if both together leave room."""
    order, counts = handle.block_order, handle.block_counts
    if position < 0 or position + 1 >= handle.num_blocks:
        return False
    block, other = wide(order[position]), wide(order[position + 1])
    count, more = wide(counts[block]), wide(counts[other])
    if count + more > BLOCK * 3 // 4:
        return False
    _move(handle, block * BLOCK + count, other * BLOCK, more)
    counts[block] = count + more
    _drop_block(handle, position + 1)
    return True


@jit
def remove_rank(handle: Handle, slot: int, key: float) -> None:
    """Take an entry out; `key` is the priority that it was inserted with."""
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
    """The greatest priority; −∞ where there are no entries."""
    if handle.num_blocks == 0:
        return -np.inf
    first = wide(handle.block_order[0]) * BLOCK
    return handle.block_keys[first]


@jit
def rebuild_ranks(handle: Handle) -> None:
    """Insert every entry, with its weight as its priority."""
    handle.num_blocks = 0
    count = handle.max_blocks
    handle.num_free_blocks = count
    for block in range(count):
        handle.free_blocks[block] = count - 1 - block
    for slot in range(handle.size):
        insert_rank(handle, slot, handle.leaves[slot])


@jit
def _integral(alpha: float, rank: float) -> float:
    """∫ x^−α dx from 1 to a rank."""
    power = 1.0 - alpha
    return math.expm1(power * math.log(rank)) / power if power != 0.0 else math.log(rank)


@jit
def _past_table(alpha: float, rank: float) -> float:
    """What H(rank) has beyond a constant, by Euler and Maclaurin."""
    term = rank**-alpha
    return _integral(alpha, rank) + term * 0.5 - alpha * term / (12.0 * rank)


@jit
def sum_over_ranks(handle: Handle, count: int) -> float:
    """H(count)."""
    table, alpha = handle.rank_table, handle.rank_alpha
    if count <= TABLE_RANKS:
        return table[count]
    last = table[TABLE_RANKS]
    return last + _past_table(alpha, float(count)) - table[TABLE_RANKS + 1]


@jit
def _rank_at(handle: Handle, target: float, size: int) -> int:
    """The least rank r with H(r) > target, at most `size`."""
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
    # A first guess from the integral alone, which mostly is off by less than one.
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
    """Draw `count` entries by their ranks, independently or one from each of `count` equal strata.

    Their slots are written to `chosen`, their ranks, from 1, to `numbers`.
    """
    slots, ranks = handle.chosen, handle.numbers
    order, counts = handle.block_order, handle.block_counts
    before, num_blocks = handle.block_before, handle.num_blocks
    if handle.ranks_stale:
        total = 0
        for position in range(num_blocks):
            before[position] = total
            total += wide(counts[order[position]])
        handle.ranks_stale = 0
    size = handle.size
    whole = sum_over_ranks(handle, size)
    stratified = handle.stratified != 0
    for number in range(count):
        unit = random_unit(handle)
        if stratified:
            unit = (number + unit) / count
        rank = _rank_at(handle, unit * whole, size)
        low, high = 0, num_blocks - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if before[middle] < rank:
                low = middle
            else:
                high = middle - 1
        place = order[low] * BLOCK + rank - 1 - before[low]
        slots[number] = wide(handle.block_slots[place])
        ranks[number] = rank
