"""Draws of a batch's slots: uniform, proportional to shifted weights, with or without repeats.

Without replacement the law is that of successive sampling, as in NumPy's
`Generator.choice(replace=False, p=p)`: each draw is proportional to the weights of what was not
drawn yet. Drawing with replacement and keeping first occurrences has exactly this law, and costs
next to nothing as long as repeats are rare. Where they are not, because few entries hold most of
the weight, what was drawn is taken out of the tree until the batch is complete, which is the same
law again.

Where the greatest weight is not far above the mean, a slot drawn uniformly and kept with
probability w / max w is cheaper than a walk down the tree. All three ways may follow one another
within a batch: given what was drawn before, each draws the next one from the same distribution.
"""

from __future__ import annotations

from hotloop.numba_tools import jit, prefetch
from hotloop.replay.native.handle import KIND_RANKS, KIND_UNIFORM, Handle, random_below, random_unit
from hotloop.replay.native.pointers import Ints, address_of, moved
from hotloop.replay.native.ranks import draw_ranks
from hotloop.replay.native.tree import (
    current_shift,
    descend,
    greatest_weight,
    rebase,
    refresh_slots,
    total_weight,
)

# A uniform proposal is accepted mean/max of the time; a walk down the tree costs as much as this
# many.
MAX_PROPOSALS = 4.0
PROPOSALS = 1024  # at a time; the work space is never smaller


@jit
def _first_seen(handle: Handle, slot: int) -> bool:
    """Whether this slot is new to the batch; remembers it."""
    table = handle.table
    mask = handle.scratch_size * 4 - 1
    epoch = handle.epoch
    place = ((slot * 2654435761) >> 12) & mask
    key = (epoch << 32) | slot
    while True:
        there = table[place]
        if there == key:
            return False
        if (there >> 32) != epoch:
            table[place] = key
            return True
        place = (place + 1) & mask


@jit
def _fill_uniformly(handle: Handle, got: int, count: int) -> None:
    """Complete the batch with slots that are not in it, each as likely as any other."""
    chosen, size = handle.chosen, handle.size
    while got < count:
        slot = random_below(handle, size)
        if _first_seen(handle, slot):
            chosen[got] = slot
            got += 1


@jit
def _draw_uniform(handle: Handle, count: int, replacement: bool) -> None:
    chosen, size = handle.chosen, handle.size
    if replacement:
        for number in range(count):
            chosen[number] = random_below(handle, size)
    elif 2 * count <= size:
        _fill_uniformly(handle, 0, count)
    else:  # most of the buffer: shuffle the slots as far as is needed (Fisher and Yates)
        slots = handle.table
        for slot in range(size):
            slots[slot] = slot
        for number in range(count):
            other = number + random_below(handle, size - number)
            chosen[number] = slots[other]
            slots[other] = slots[number]


@jit
def _propose(handle: Handle, shift: float, count: int, slots: Ints) -> None:
    """Draw `count` slots by rejection from a uniform proposal."""
    leaves, size = handle.leaves, handle.size
    proposals = handle.proposals
    greatest = greatest_weight(handle) + shift
    total = total_weight(handle, shift)
    ratio = greatest * size / total * 1.1
    got = 0
    while got < count:
        wanted = min(int((count - got) * ratio) + 4, PROPOSALS)
        for number in range(wanted):
            slot = random_below(handle, size)
            proposals[number] = slot
            prefetch(address_of(leaves) + slot * 8)
        for number in range(wanted):
            slot = proposals[number]
            if random_unit(handle) * greatest < leaves[slot] + shift:
                slots[got] = slot
                got += 1
                if got == count:
                    break


@jit
def _scan(handle: Handle, shift: float) -> int:
    """Draw one slot by adding up all weights; -1 if none is positive.

    Where the tree's rounding errors are larger than all that is left to draw from.
    """
    leaves, size = handle.leaves, handle.size
    total = 0.0
    for slot in range(size):
        total += max(leaves[slot] + shift, 0.0)
    target = random_unit(handle) * total
    last = -1
    for slot in range(size):
        weight = leaves[slot] + shift
        if weight > 0.0:
            last = slot
            target -= weight
            if target < 0.0:
                break
    return last


@jit
def _candidates(handle: Handle, shift: float, count: int, slots: Ints, stratified: bool) -> int:
    """Draw up to `count` slots by walks down the tree, independent and with repeats.

    Walks that rounding led to a slot without weight are left out, and with strata made up for.

    Returns:
        How many were drawn: at least one.
    """
    leaves = handle.leaves
    total = total_weight(handle, shift)
    targets = handle.targets
    for _ in range(8):
        for number in range(count):
            unit = random_unit(handle)
            if stratified:
                unit = (number + unit) / count
            targets[number] = unit * total
        descend(handle, shift, targets, slots, count, handle.prefixes)
        got = 0
        for number in range(count):
            slot = slots[number]
            if leaves[slot] + shift > 0.0:
                slots[got] = slot
                got += 1
        if got > 0:
            return got
    slots[0] = _scan(handle, shift)
    return 1


@jit
def _draw_with_replacement(handle: Handle, shift: float, count: int) -> None:
    chosen = handle.chosen
    stratified = handle.stratified != 0
    size = handle.size
    total = total_weight(handle, shift)
    if not stratified and (greatest_weight(handle) + shift) * size <= MAX_PROPOSALS * total:
        _propose(handle, shift, count, chosen)
        return
    got = 0
    while got < count:
        got += _candidates(handle, shift, count - got, moved(chosen, got), stratified)
        stratified = False  # what rounding lost is drawn from the whole


@jit
def _take_out(handle: Handle, shift: float, first: int, last: int) -> None:
    """Give the chosen slots first … last − 1 no weight until they are put back."""
    chosen, saved, leaves = handle.chosen, handle.saved, handle.leaves
    for number in range(first, last):
        slot = chosen[number]
        saved[number] = leaves[slot]
        leaves[slot] = 0.0 - shift
    refresh_slots(handle, moved(chosen, first), last - first)


@jit
def _draw_distinct(handle: Handle, shift: float, count: int) -> int:
    """Draw `count` slots without replacement.

    Returns:
        How many have weight; fewer than `count` only if no other slot has.
    """
    chosen, candidates = handle.chosen, handle.candidates
    leaves, size = handle.leaves, handle.size
    total = total_weight(handle, shift)
    is_even = (greatest_weight(handle) + shift) * size <= MAX_PROPOSALS * total
    got, repeats = 0, 0
    while got < count and repeats <= 2 * count + 32:
        drawn = count - got
        if is_even:
            _propose(handle, shift, drawn, candidates)
        else:
            drawn = _candidates(handle, shift, drawn, candidates, False)
        before = got
        for number in range(drawn):
            slot = candidates[number]
            if _first_seen(handle, slot):
                chosen[got] = slot
                got += 1
        repeats += drawn - (got - before)
    if got == count:
        return got
    _take_out(handle, shift, 0, got)
    removed = got
    while got < count and greatest_weight(handle) + shift > 0.0:
        rebase(handle, shift)
        drawn = _candidates(handle, shift, count - got, candidates, False)
        for number in range(drawn):
            slot = candidates[number]
            if _first_seen(handle, slot):
                chosen[got] = slot
                got += 1
        _take_out(handle, shift, removed, got)
        removed = got
    saved = handle.saved
    for number in range(removed):
        leaves[chosen[number]] = saved[number]
    refresh_slots(handle, chosen, removed)
    return got


@jit
def draw(handle: Handle, count: int) -> int:
    """Choose a batch of `count` slots, into the work space.

    Returns:
        `count`; 0 if there are too few entries; or strictly the number of those that have
        weight, where that is smaller.
    """
    size = handle.size
    if size == 0 or (count > size and not handle.replacement):
        return 0
    epoch = handle.epoch + 1
    if epoch == 0x7FFFFFFF:  # the table's marks of old would be taken for new ones
        for place in range(handle.scratch_size * 4):
            handle.table[place] = 0
        epoch = 1
    handle.epoch = epoch
    replacement = handle.replacement != 0
    kind = handle.kind
    if kind == KIND_UNIFORM:
        _draw_uniform(handle, count, replacement)
        return count
    if kind == KIND_RANKS:
        draw_ranks(handle, count)
        return count
    shift = current_shift(handle)
    rebase(handle, shift)
    strict = handle.strict != 0 and not replacement
    random = handle.random
    random_a, random_b, random_c, random_d = random[0], random[1], random[2], random[3]
    positive = 0
    if greatest_weight(handle) + shift > 0.0:
        positive = count
        if replacement:
            _draw_with_replacement(handle, shift, count)
        else:
            positive = _draw_distinct(handle, shift, count)
    if positive < count:
        if strict:  # a refused batch leaves the random numbers where they were
            random[0], random[1], random[2], random[3] = random_a, random_b, random_c, random_d
            return positive
        handle.filled += count - positive
        if replacement or positive == 0:
            _draw_uniform(handle, count, replacement)
        else:
            _fill_uniformly(handle, positive, count)
    return count
