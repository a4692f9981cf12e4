"""Sums, least and greatest of the weights, kept in a tree with eight children a node.

Level 0 is the weights themselves; a word of level ℓ ≥ 1 belongs to eight words of level ℓ − 1, which
lie in one cache line. There are three such trees: sums, minima, maxima (1.14 bytes an entry each, and
8 for the weights). A parent is always computed from its children, never changed by a difference: sums
don't drift, and what was overwritten leaves no trace.

A shift of all weights by one constant c changes a subtree's sum by c times its number of entries. So
one tree serves under any shift, and the entries' numbers are known: slots 0 … size − 1 are occupied.

The children's prefix sums are added up as a line is visited, in place of being stored: the line is
what costs, and a stored prefix could not be recomputed from the children's sums alone.
"""

from __future__ import annotations

import numpy as np

from hotloop.replay.native import (
    CAPACITY,
    LEVELS,
    MAXS,
    MINS,
    SIZE,
    SUMS,
    jit,
    load_f64,
    load_i64,
    prefetch,
    store_f64,
    store_i64,
)


def level_sizes(capacity: int) -> list[int]:
    """Words a level, from the weights up to one root; all but the root's are padded to eight."""
    sizes = [capacity]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 8))
    if len(sizes) == 1:
        sizes.append(1)
    return [-(-size // 8) * 8 for size in sizes]


@jit
def _refresh_node(handle: int, level: int, node: int) -> None:
    """Compute one word of each tree from its eight children."""
    below = load_i64(handle, SUMS + level - 1)
    first = node * 8
    total = load_f64(below, first)
    for child in range(1, 8):
        total += load_f64(below, first + child)
    store_f64(load_i64(handle, SUMS + level), node, total)
    least, greatest = np.inf, -np.inf
    if level == 1:
        for child in range(min(8, load_i64(handle, SIZE) - first)):
            weight = load_f64(below, first + child)
            least = min(least, weight)
            greatest = max(greatest, weight)
    else:
        mins = load_i64(handle, MINS + level - 1)
        maxs = load_i64(handle, MAXS + level - 1)
        for child in range(8):
            least = min(least, load_f64(mins, first + child))
            greatest = max(greatest, load_f64(maxs, first + child))
    store_f64(load_i64(handle, MINS + level), node, least)
    store_f64(load_i64(handle, MAXS + level), node, greatest)


@jit
def refresh_range(handle: int, first: int, last: int) -> None:
    """Bring the trees up to date after the weights of slots first … last were written."""
    for level in range(1, load_i64(handle, LEVELS) + 1):
        first >>= 3
        last >>= 3
        for node in range(first, last + 1):
            _refresh_node(handle, level, node)


@jit
def refresh_slots(handle: int, slots: int, count: int) -> None:
    """Bring the trees up to date after the weights of `count` slots were written."""
    size = load_i64(handle, SIZE)
    if size == 0:
        return
    num_levels = load_i64(handle, LEVELS)
    for level in range(1, num_levels + 1):
        shift = 3 * level
        num_nodes = ((size - 1) >> shift) + 1
        if num_nodes <= count:
            for node in range(num_nodes):
                _refresh_node(handle, level, node)
        else:
            for number in range(count):
                _refresh_node(handle, level, load_i64(slots, number) >> shift)


@jit
def sum_of_weights(handle: int) -> float:
    """Of all occupied slots, without a shift."""
    return load_f64(load_i64(handle, SUMS + load_i64(handle, LEVELS)), 0)


@jit
def least_weight(handle: int) -> float:
    """Of all occupied slots, exactly; +∞ where there are none."""
    return load_f64(load_i64(handle, MINS + load_i64(handle, LEVELS)), 0)


@jit
def greatest_weight(handle: int) -> float:
    """Of all occupied slots, exactly; −∞ where there are none."""
    return load_f64(load_i64(handle, MAXS + load_i64(handle, LEVELS)), 0)


@jit
def descend(handle: int, shift: float, targets: int, slots: int, count: int) -> None:
    """Find the slots in whose share of the shifted weights `count` numbers fall.

    All go down together, a level at a time, and ask for their next line before it is needed: the
    misses of one level overlap.

    Args:
        handle: the buffer's.
        shift: c, added to every weight.
        targets: float64, (count,), in [0, Σ(B + c)); overwritten.
        slots: int64, (count,), written. Rounding may end at a slot of weight zero, or past the last
            one that has weight: who calls checks.
        count: how many.
    """
    size = load_i64(handle, SIZE)
    for number in range(count):
        store_i64(slots, number, 0)
    for level in range(load_i64(handle, LEVELS) - 1, -1, -1):
        words = load_i64(handle, SUMS + level)
        below = load_i64(handle, SUMS + level - 1) if level > 0 else 0
        span = 1 << (3 * level)
        added = shift * span
        for number in range(count):
            node = load_i64(slots, number)
            line = words + node * 64
            target = load_f64(targets, number)
            child, before, total = 0, 0.0, 0.0
            if (node + 1) * 8 * span <= size:
                # The last child needs no test: what is left over is its.
                for place in range(7):
                    total += load_f64(line, place) + added
                    past = target >= total
                    child += past
                    before = total if past else before
            else:
                occupied = size - node * 8 * span  # of this node's slots, at least 1
                for place in range(7):
                    here = min(span, occupied - place * span)
                    if occupied - (place + 1) * span <= 0:
                        break
                    total += load_f64(line, place) + shift * here
                    if target >= total:
                        child = place + 1
                        before = total
            child += node * 8
            store_i64(slots, number, child)
            store_f64(targets, number, target - before)
            if level > 0:
                prefetch(below + child * 64)


@jit
def rebuild(handle: int) -> None:
    """Compute all levels from the weights."""
    size = load_i64(handle, SIZE)
    top = load_i64(handle, LEVELS)
    store_f64(load_i64(handle, SUMS + top), 0, 0.0)
    store_f64(load_i64(handle, MINS + top), 0, np.inf)
    store_f64(load_i64(handle, MAXS + top), 0, -np.inf)
    if size > 0:
        refresh_range(handle, 0, min(size, load_i64(handle, CAPACITY)) - 1)
