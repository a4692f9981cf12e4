"""Sums, minima and maxima of the weights, in trees with eight children per node.

Level 0 contains the weights. A word of level ℓ ≥ 1 has eight children in level ℓ − 1, which share a
cache line. There are three trees: sums, minima and maxima (1.14 bytes per entry each, plus 8 for
the weights). A parent is always recomputed from its children and never updated by a difference, so
sums don't drift, and overwritten weights leave no trace.

A shift of all weights by a constant c changes a subtree's sum by c times its number of entries. So
one tree works with any shift, since slots 0 … size − 1 are occupied. If the weights are nearly
equal and the shift is large, that difference would lose digits. Therefore the sums are those of
B + `base`, and `rebase` sets the base to the shift if the two are far apart.

The prefix sums of the children are computed when a line is visited instead of being stored. Memory
access dominates the cost, and a stored prefix could not be recomputed from the children's sums.
"""

from __future__ import annotations

import numpy as np

from hotloop.base.numba_tools import jit, prefetch
from hotloop.replay.native.handle import Handle, wide
from hotloop.replay.native.pointers import Floats, Ints, advance, f64_at

# Largest ratio of the shift's share to the sum of all weights. At this ratio 6 of 53 bits are lost.
MAX_CANCELLED = 64.0


def level_sizes(capacity: int) -> list[int]:
    """Return the words of each level, from the weights up to the root, padded to eight."""
    sizes = [capacity]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 8))
    if len(sizes) == 1:
        sizes.append(1)
    return [-(-size // 8) * 8 for size in sizes]


@jit
def _refresh_node(handle: Handle, level: int, node: int) -> None:
    """Recompute one word of each tree from its eight children."""
    below = f64_at(handle.sums[level - 1])
    first = node * 8
    total, least, greatest = 0.0, np.inf, -np.inf
    if level == 1:
        base = handle.base
        for child in range(min(8, handle.size - first)):
            weight = below[first + child]
            total += weight + base
            least = min(least, weight)
            greatest = max(greatest, weight)
    else:
        mins = f64_at(handle.mins[level - 1])
        maxs = f64_at(handle.maxs[level - 1])
        for child in range(8):
            total += below[first + child]
            least = min(least, mins[first + child])
            greatest = max(greatest, maxs[first + child])
    f64_at(handle.sums[level])[node] = total
    f64_at(handle.mins[level])[node] = least
    f64_at(handle.maxs[level])[node] = greatest


@jit
def refresh_range(handle: Handle, first: int, last: int) -> None:
    """Update the trees after the weights of slots first … last were written."""
    for level in range(1, handle.levels + 1):
        first >>= 3
        last >>= 3
        for node in range(first, last + 1):
            _refresh_node(handle, level, node)


@jit
def refresh_slots(handle: Handle, slots: Ints, count: int) -> None:
    """Update the trees after the weights of `count` slots were written."""
    size = handle.size
    if size == 0:
        return
    num_levels = handle.levels
    for level in range(1, num_levels + 1):
        shift = 3 * level
        num_nodes = ((size - 1) >> shift) + 1
        if num_nodes <= count:
            for node in range(num_nodes):
                _refresh_node(handle, level, node)
        else:
            for number in range(count):
                _refresh_node(handle, level, slots[number] >> shift)


@jit
def total_weight(handle: Handle, shift: float) -> float:
    """Return Σ (B + c) over all occupied slots."""
    total = f64_at(handle.sums[handle.levels])[0]
    return total + (shift - handle.base) * handle.size


@jit
def rebase(handle: Handle, shift: float) -> None:
    """Recompute the sums from the shifted weights if c · count cancels most of Σ B.

    This takes a pass over all weights. It is needed again only if the shift decreases by far more
    than the mean of the shifted weights.
    """
    cancelled = abs(shift - handle.base) * handle.size
    if not cancelled <= MAX_CANCELLED * total_weight(handle, shift):
        handle.base = shift
        rebuild(handle)


@jit
def least_weight(handle: Handle) -> float:
    """Return the exact minimum over all occupied slots, +∞ if there are none."""
    return f64_at(handle.mins[handle.levels])[0]


@jit
def greatest_weight(handle: Handle) -> float:
    """Return the exact maximum over all occupied slots, −∞ if there are none."""
    return f64_at(handle.maxs[handle.levels])[0]


@jit
def current_shift(handle: Handle) -> float:
    """Return the constant that is added to every weight."""
    if handle.shift_is_min:
        return max(-least_weight(handle), 0.0)
    return handle.shift


@jit
def descend(
    handle: Handle, offset: float, targets: Floats, slots: Ints, count: int, prefixes: Floats
) -> None:
    """Find the slots whose intervals of cumulative shifted weight contain `count` numbers.

    All walks descend together, one level at a time, and prefetch their next line, so that the cache
    misses of one level overlap. No branch depends on a weight, since the processor could not
    predict it: 256 walks among 1,000,000 take 10 µs, and 41 µs with a loop that selects.

    Args:
        handle: the buffer.
        offset: c, added to every weight.
        targets: (count,), in [0, Σ(B + c)), overwritten.
        slots: (count,), the result. Rounding may end at a slot of weight zero: callers check.
        count: number of walks.
        prefixes: work space of 64 words.
    """
    size = handle.size
    for walk in range(count):
        slots[walk] = 0
    for level in range(handle.levels - 1, -1, -1):
        words = f64_at(handle.sums[level])
        below = handle.sums[level - 1] if level > 0 else 0
        span, last = 1 << (3 * level), (size - 1) >> (3 * level)
        shift = offset - handle.base if level > 0 else offset
        for walk in range(count):
            node = slots[walk]
            line = advance(words, node * 8)
            occupied = size - node * 8 * span  # slots of this node
            # The shift's share in the first seven children.
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
            # Prefix sums of the children, and the child whose interval contains the target.
            p1 = line[0] + c0
            p2 = p1 + (line[1] + c1)
            p3 = p2 + (line[2] + c2)
            p4 = p3 + (line[3] + c3)
            p5 = p4 + (line[4] + c4)
            p6 = p5 + (line[5] + c5)
            p7 = p6 + (line[6] + c6)
            target = targets[walk]
            child = wide(target >= p1) + wide(target >= p2) + wide(target >= p3)
            child += wide(target >= p4) + wide(target >= p5) + wide(target >= p6)
            child += wide(target >= p7)
            # Read the prefix back from memory. Eight work spaces let eight walks overlap.
            prefix = advance(prefixes, (walk & 7) * 8)
            prefix[0] = 0.0
            prefix[1] = p1
            prefix[2] = p2
            prefix[3] = p3
            prefix[4] = p4
            prefix[5] = p5
            prefix[6] = p6
            prefix[7] = p7
            targets[walk] = target - prefix[child]
            # Rounding may lead past the last entry, but not out of the tree.
            child = min(child + node * 8, last)
            slots[walk] = child
            if level > 0:
                prefetch(below + child * 64)


@jit
def rebuild(handle: Handle) -> None:
    """Recompute all levels from the weights."""
    size = handle.size
    top = handle.levels
    f64_at(handle.sums[top])[0] = 0.0
    f64_at(handle.mins[top])[0] = np.inf
    f64_at(handle.maxs[top])[0] = -np.inf
    if size > 0:
        refresh_range(handle, 0, min(size, handle.capacity) - 1)
