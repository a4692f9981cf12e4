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

from hotloop.compiled import (
    jit,
    load_f64,
    load_i32,
    load_i64,
    move_bytes,
    store_f64,
    store_i32,
    store_i64,
)
from hotloop.replay.native import (
    BLOCK_BEFORE,
    BLOCK_COUNTS,
    BLOCK_KEYS,
    BLOCK_ORDER,
    BLOCK_SLOTS,
    FREE_BLOCKS,
    MAX_BLOCKS,
    NUM_BLOCKS,
    NUM_FREE_BLOCKS,
    RANK_ALPHA,
    RANK_TABLE,
    RANKS_STALE,
    SIZE,
    STRATIFIED,
    SUMS,
    random_unit,
    wide,
)
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
def _comes_before(handle: int, place: int, key: float, slot: int) -> bool:
    """Whether the entry at a place of the blocks stands before (key, slot)."""
    there = load_f64(load_i64(handle, BLOCK_KEYS), place)
    if there != key:
        return there > key
    return load_i32(load_i64(handle, BLOCK_SLOTS), place) < slot


@jit
def _find(handle: int, key: float, slot: int) -> tuple[int, int]:
    """Where (key, slot) belongs: which block of the order, and the place in it."""
    order, counts = load_i64(handle, BLOCK_ORDER), load_i64(handle, BLOCK_COUNTS)
    low, high = 0, load_i64(handle, NUM_BLOCKS) - 1
    while low < high:  # the last block whose first entry does not come after it
        middle = (low + high + 1) >> 1
        first = load_i32(order, middle) * BLOCK
        if (
            _comes_before(handle, first, key, slot)
            or load_i32(load_i64(handle, BLOCK_SLOTS), first) == slot
        ):
            low = middle
        else:
            high = middle - 1
    block = load_i32(order, low)
    first, last = 0, wide(load_i32(counts, block))
    while first < last:
        middle = (first + last) >> 1
        if _comes_before(handle, block * BLOCK + middle, key, slot):
            first = middle + 1
        else:
            last = middle
    return low, first


@jit
def _move(handle: int, target: int, source: int, count: int) -> None:
    """Move entries from one place of the blocks to another."""
    keys, slots = load_i64(handle, BLOCK_KEYS), load_i64(handle, BLOCK_SLOTS)
    move_bytes(keys + target * 8, keys + source * 8, count * 8)
    move_bytes(slots + target * 4, slots + source * 4, count * 4)


@jit
def _new_block(handle: int, position: int) -> int:
    """An empty block, put at a position of the order."""
    order, num_blocks = load_i64(handle, BLOCK_ORDER), load_i64(handle, NUM_BLOCKS)
    num_free = load_i64(handle, NUM_FREE_BLOCKS) - 1
    block = load_i32(load_i64(handle, FREE_BLOCKS), num_free)
    store_i64(handle, NUM_FREE_BLOCKS, num_free)
    move_bytes(order + (position + 1) * 4, order + position * 4, (num_blocks - position) * 4)
    store_i32(order, position, block)
    store_i32(load_i64(handle, BLOCK_COUNTS), block, 0)
    store_i64(handle, NUM_BLOCKS, num_blocks + 1)
    return wide(block)


@jit
def _drop_block(handle: int, position: int) -> None:
    """Take an empty block out of the order."""
    order, num_blocks = load_i64(handle, BLOCK_ORDER), load_i64(handle, NUM_BLOCKS)
    num_free = load_i64(handle, NUM_FREE_BLOCKS)
    store_i32(load_i64(handle, FREE_BLOCKS), num_free, load_i32(order, position))
    store_i64(handle, NUM_FREE_BLOCKS, num_free + 1)
    move_bytes(order + position * 4, order + (position + 1) * 4, (num_blocks - position - 1) * 4)
    store_i64(handle, NUM_BLOCKS, num_blocks - 1)


@jit
def insert_rank(handle: int, slot: int, key: float) -> None:
    """Put an entry where its priority belongs."""
    store_i64(handle, RANKS_STALE, 1)
    order, counts = load_i64(handle, BLOCK_ORDER), load_i64(handle, BLOCK_COUNTS)
    if load_i64(handle, NUM_BLOCKS) == 0:
        _new_block(handle, 0)
    position, place = _find(handle, key, slot)
    block = wide(load_i32(order, position))
    if load_i32(counts, block) == BLOCK:
        half = BLOCK // 2
        other = _new_block(handle, position + 1)
        _move(handle, other * BLOCK, block * BLOCK + half, half)
        store_i32(counts, block, half)
        store_i32(counts, other, half)
        if place > half:
            block, place = other, place - half
    count = wide(load_i32(counts, block))
    first = block * BLOCK + place
    _move(handle, first + 1, first, count - place)
    store_f64(load_i64(handle, BLOCK_KEYS), first, key)
    store_i32(load_i64(handle, BLOCK_SLOTS), first, slot)
    store_i32(counts, block, count + 1)


@jit
def _join(handle: int, position: int) -> bool:
    """Join a block with the one after it, if both together leave room."""
    order, counts = load_i64(handle, BLOCK_ORDER), load_i64(handle, BLOCK_COUNTS)
    if position < 0 or position + 1 >= load_i64(handle, NUM_BLOCKS):
        return False
    block, other = wide(load_i32(order, position)), wide(load_i32(order, position + 1))
    count, more = wide(load_i32(counts, block)), wide(load_i32(counts, other))
    if count + more > BLOCK * 3 // 4:
        return False
    _move(handle, block * BLOCK + count, other * BLOCK, more)
    store_i32(counts, block, count + more)
    _drop_block(handle, position + 1)
    return True


@jit
def remove_rank(handle: int, slot: int, key: float) -> None:
    """Take an entry out; `key` is the priority that it was inserted with."""
    store_i64(handle, RANKS_STALE, 1)
    order, counts = load_i64(handle, BLOCK_ORDER), load_i64(handle, BLOCK_COUNTS)
    position, place = _find(handle, key, slot)
    block = wide(load_i32(order, position))
    count = wide(load_i32(counts, block)) - 1
    first = block * BLOCK + place
    _move(handle, first, first + 1, count - place)
    store_i32(counts, block, count)
    if count == 0:
        _drop_block(handle, position)
    elif count < BLOCK // 2 and not _join(handle, position):
        _join(handle, position - 1)


@jit
def greatest_rank(handle: int) -> float:
    """The greatest priority; −∞ where there are no entries."""
    if load_i64(handle, NUM_BLOCKS) == 0:
        return -np.inf
    first = wide(load_i32(load_i64(handle, BLOCK_ORDER), 0)) * BLOCK
    return load_f64(load_i64(handle, BLOCK_KEYS), first)


@jit
def rebuild_ranks(handle: int) -> None:
    """Insert every entry, with what `SUMS` holds as its priority."""
    store_i64(handle, NUM_BLOCKS, 0)
    count = load_i64(handle, MAX_BLOCKS)
    store_i64(handle, NUM_FREE_BLOCKS, count)
    for block in range(count):
        store_i32(load_i64(handle, FREE_BLOCKS), block, count - 1 - block)
    for slot in range(load_i64(handle, SIZE)):
        insert_rank(handle, slot, load_f64(load_i64(handle, SUMS), slot))


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
def sum_over_ranks(handle: int, count: int) -> float:
    """H(count)."""
    table, alpha = load_i64(handle, RANK_TABLE), load_f64(handle, RANK_ALPHA)
    if count <= TABLE_RANKS:
        return load_f64(table, count)
    last = load_f64(table, TABLE_RANKS)
    return last + _past_table(alpha, float(count)) - load_f64(table, TABLE_RANKS + 1)


@jit
def _rank_at(handle: int, target: float, size: int) -> int:
    """The least rank r with H(r) > target, at most `size`."""
    table, alpha = load_i64(handle, RANK_TABLE), load_f64(handle, RANK_ALPHA)
    low, high = 1, min(size, TABLE_RANKS)
    if target < load_f64(table, high):
        while low < high:
            middle = (low + high) >> 1
            if load_f64(table, middle) > target:
                high = middle
            else:
                low = middle + 1
        return low
    if size <= TABLE_RANKS:
        return size
    # A first guess from the integral alone, which mostly is off by less than one.
    power = 1.0 - alpha
    beyond = target - load_f64(table, TABLE_RANKS) + load_f64(table, TABLE_RANKS + 2)
    guess = math.exp(beyond if power == 0.0 else math.log1p(power * beyond) / power)
    rank = max(int(guess), TABLE_RANKS + 1) if guess < size else size
    while rank < size and sum_over_ranks(handle, rank) <= target:
        rank += 1
    while rank > TABLE_RANKS + 1 and sum_over_ranks(handle, rank - 1) > target:
        rank -= 1
    return rank


@jit
def draw_ranks(handle: int, count: int, slots: int, ranks: int) -> None:
    """Draw `count` entries by their ranks, independently or one from each of `count` equal strata.

    Args:
        handle: the buffer's.
        count: how many.
        slots: int64, (count,), written.
        ranks: int64, (count,), written: from 1.
    """
    order, counts = load_i64(handle, BLOCK_ORDER), load_i64(handle, BLOCK_COUNTS)
    before, num_blocks = load_i64(handle, BLOCK_BEFORE), load_i64(handle, NUM_BLOCKS)
    if load_i64(handle, RANKS_STALE):
        total = 0
        for position in range(num_blocks):
            store_i64(before, position, total)
            total += wide(load_i32(counts, load_i32(order, position)))
        store_i64(handle, RANKS_STALE, 0)
    size = load_i64(handle, SIZE)
    whole = sum_over_ranks(handle, size)
    stratified = load_i64(handle, STRATIFIED) != 0
    for number in range(count):
        unit = random_unit(handle)
        if stratified:
            unit = (number + unit) / count
        rank = _rank_at(handle, unit * whole, size)
        low, high = 0, num_blocks - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if load_i64(before, middle) < rank:
                low = middle
            else:
                high = middle - 1
        place = load_i32(order, low) * BLOCK + rank - 1 - load_i64(before, low)
        store_i64(slots, number, wide(load_i32(load_i64(handle, BLOCK_SLOTS), place)))
        store_i64(ranks, number, rank)
