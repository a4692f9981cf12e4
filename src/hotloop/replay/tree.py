"""Sums, least and greatest of the weights, kept in a tree with eight children a node.

Level 0 is the weights themselves; a word of level ℓ ≥ 1 belongs to eight words of level ℓ − 1,
which lie in one cache line. There are three such trees: sums, minima, maxima (1.14 bytes an entry
each, and 8 for the weights). A parent is always computed from its children, never changed by a
difference: sums don't drift, and what was overwritten leaves no trace.

A shift of all weights by one constant c changes a subtree's sum by c times its number of entries.
So one tree serves under any shift, and the entries' numbers are known: slots 0 … size − 1 are
occupied. Where the weights are nearly equal and the shift large, that difference would lose digits;
so the sums are of B + `BASE`, and the base is brought to the shift where they are far apart.

The children's prefix sums are added up as a line is visited, in place of being stored: the line is
what costs, and a stored prefix could not be recomputed from the children's sums alone.
"""

from __future__ import annotations

import numpy as np

from hotloop.compiled import jit, load_f64, load_i64, prefetch, store_f64, store_i64
from hotloop.replay.native import BASE, CAPACITY, LEVELS, MAXS, MINS, SIZE, SUMS, wide

# How many times the sum of all weights a shift's share in it may be: 6 bits of 53 are lost then.
MAX_CANCELLED = 64.0


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
    total, least, greatest = 0.0, np.inf, -np.inf
    if level == 1:
        base = load_f64(handle, BASE)
        for child in range(min(8, load_i64(handle, SIZE) - first)):
            weight = load_f64(below, first + child)
            total += weight + base
            least = min(least, weight)
            greatest = max(greatest, weight)
    else:
        mins = load_i64(handle, MINS + level - 1)
        maxs = load_i64(handle, MAXS + level - 1)
        for child in range(8):
            total += load_f64(below, first + child)
            least = min(least, load_f64(mins, first + child))
            greatest = max(greatest, load_f64(maxs, first + child))
    store_f64(load_i64(handle, SUMS + level), node, total)
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
def total_weight(handle: int, shift: float) -> float:
    """Σ (B + c) over all occupied slots."""
    total = load_f64(load_i64(handle, SUMS + load_i64(handle, LEVELS)), 0)
    return total + (shift - load_f64(handle, BASE)) * load_i64(handle, SIZE)


@jit
def rebase(handle: int, shift: float) -> None:
    """Sum up from the shifted weights themselves, where c · count cancels most of Σ B.

    That costs a pass over all weights, and is needed again only when the shift has come down by far
    more than the mean of what is shifted.
    """
    away = abs(shift - load_f64(handle, BASE)) * load_i64(handle, SIZE)
    if not away <= MAX_CANCELLED * total_weight(handle, shift):
        store_f64(handle, BASE, shift)
        rebuild(handle)


@jit
def least_weight(handle: int) -> float:
    """Of all occupied slots, exactly; +∞ where there are none."""
    return load_f64(load_i64(handle, MINS + load_i64(handle, LEVELS)), 0)


@jit
def greatest_weight(handle: int) -> float:
    """Of all occupied slots, exactly; −∞ where there are none."""
    return load_f64(load_i64(handle, MAXS + load_i64(handle, LEVELS)), 0)


@jit
def descend(handle: int, whole: float, targets: int, slots: int, count: int, prefixes: int) -> None:
    """Find the slots in whose share of the shifted weights `count` numbers fall.

    All go down together, a level at a time, and ask for their next line before it is needed: the
    misses of one level overlap. Nothing branches on a weight, which the processor could not
    foresee: 256 walks among 1,000,000 take 10 µs, and 41 µs with a loop that selects.

    Args:
        handle: the buffer's.
        whole: c, added to every weight.
        targets: float64, (count,), in [0, Σ(B + c)); overwritten.
        slots: int64, (count,), written. Rounding may end at a slot of weight zero: callers check.
        count: how many.
        prefixes: work space, 64 words.
    """
    size = load_i64(handle, SIZE)
    for number in range(count):
        store_i64(slots, number, 0)
    for level in range(load_i64(handle, LEVELS) - 1, -1, -1):
        words = load_i64(handle, SUMS + level)
        below = load_i64(handle, SUMS + level - 1) if level > 0 else 0
        span, last = 1 << (3 * level), (size - 1) >> (3 * level)
        shift = whole - load_f64(handle, BASE) if level > 0 else whole
        for number in range(count):
            node = load_i64(slots, number)
            line = words + node * 64
            occupied = size - node * 8 * span  # of this node's slots
            if shift == 0.0 or occupied >= 8 * span:
                c0 = c1 = c2 = c3 = c4 = c5 = c6 = shift * span
            else:
                c0 = shift * min(max(occupied, 0), span)
                c1 = shift * min(max(occupied - span, 0), span)
                c2 = shift * min(max(occupied - 2 * span, 0), span)
                c3 = shift * min(max(occupied - 3 * span, 0), span)
                c4 = shift * min(max(occupied - 4 * span, 0), span)
                c5 = shift * min(max(occupied - 5 * span, 0), span)
                c6 = shift * min(max(occupied - 6 * span, 0), span)
            p1 = load_f64(line, 0) + c0
            p2 = p1 + (load_f64(line, 1) + c1)
            p3 = p2 + (load_f64(line, 2) + c2)
            p4 = p3 + (load_f64(line, 3) + c3)
            p5 = p4 + (load_f64(line, 4) + c4)
            p6 = p5 + (load_f64(line, 5) + c5)
            p7 = p6 + (load_f64(line, 6) + c6)
            target = load_f64(targets, number)
            child = wide(target >= p1) + wide(target >= p2) + wide(target >= p3)
            child += wide(target >= p4) + wide(target >= p5) + wide(target >= p6)
            child += wide(target >= p7)
            # What lies before the child is read back: eight walks at once don't wait for it.
            prefix = prefixes + (number & 7) * 64
            store_f64(prefix, 0, 0.0)
            store_f64(prefix, 1, p1)
            store_f64(prefix, 2, p2)
            store_f64(prefix, 3, p3)
            store_f64(prefix, 4, p4)
            store_f64(prefix, 5, p5)
            store_f64(prefix, 6, p6)
            store_f64(prefix, 7, p7)
            store_f64(targets, number, target - load_f64(prefix, child))
            # Rounding may lead past the last entry, though not out of the tree.
            child = min(child + node * 8, last)
            store_i64(slots, number, child)
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
