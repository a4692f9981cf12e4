"""Sampling of a batch's slots: uniform or proportional to shifted weights, with or without repeats.

Sampling without replacement is successive sampling, as in NumPy's
`Generator.choice(replace=False, p=p)`: each draw is proportional to the weights of the slots not
drawn yet. Drawing with replacement and keeping first occurrences has exactly this distribution, and
costs next to nothing while repeats are rare. If a few entries have most of the weight, the drawn
slots are removed from the tree until the batch is complete, which gives the same distribution.

If the greatest weight is not far above the mean, rejection sampling (draw a slot uniformly, accept
it with probability w / max w) is cheaper than a walk down the tree. One batch may use all three
methods: given the slots drawn before, each draws the next one from the same distribution.
"""

from __future__ import annotations

from hotloop.base.numba_tools import jit, prefetch
from hotloop.replay.native.handle import KIND_RANKS, KIND_UNIFORM, Handle, random_below, random_unit
from hotloop.replay.native.pointers import Ints, address_of, advance
from hotloop.replay.native.ranks import draw_ranks
from hotloop.replay.native.tree import (
    current_shift,
    descend,
    greatest_weight,
    rebase,
    refresh_slots,
    total_weight,
)

# Proposals that cost as much as one walk down the tree. A proposal is accepted with probability
# mean / max.
MAX_PROPOSALS = 4.0
PROPOSALS_PER_ROUND = 1024  # also the minimum size of the work space


@jit
def _is_new_slot(handle: Handle, slot: int) -> bool:
    """Return whether this slot is new to the batch, and record it."""
    table = handle.table
    mask = handle.scratch_size * 4 - 1
    epoch = handle.epoch
    place = ((slot * 2654435761) >> 12) & mask
    key = (epoch << 32) | slot
    while True:
        entry = table[place]
        if entry == key:
            return False
        if (entry >> 32) != epoch:
            table[place] = key
            return True
        place = (place + 1) & mask


@jit
def _fill_uniformly(handle: Handle, num_drawn: int, count: int) -> None:
    """Complete the batch with uniformly drawn slots that are not in it yet."""
    batch_slots, size = handle.batch_slots, handle.size
    while num_drawn < count:
        slot = random_below(handle, size)
        if _is_new_slot(handle, slot):
            batch_slots[num_drawn] = slot
            num_drawn += 1


@jit
def _draw_uniform(handle: Handle, count: int, replacement: bool) -> None:
    batch_slots, size = handle.batch_slots, handle.size
    if replacement:
        for number in range(count):
            batch_slots[number] = random_below(handle, size)
    elif 2 * count <= size:
        _fill_uniformly(handle, 0, count)
    else:  # most of the buffer: a partial Fisher–Yates shuffle
        slots = handle.table
        for slot in range(size):
            slots[slot] = slot
        for number in range(count):
            other = number + random_below(handle, size - number)
            batch_slots[number] = slots[other]
            slots[other] = slots[number]


@jit
def _draw_by_rejection(handle: Handle, shift: float, count: int, slots: Ints) -> None:
    """Draw `count` slots by rejection sampling with uniform proposals."""
    leaves, size = handle.leaves, handle.size
    proposals = handle.proposals
    greatest = greatest_weight(handle) + shift
    total = total_weight(handle, shift)
    ratio = greatest * size / total * 1.1
    num_drawn = 0
    while num_drawn < count:
        num_proposals = min(int((count - num_drawn) * ratio) + 4, PROPOSALS_PER_ROUND)
        for number in range(num_proposals):
            slot = random_below(handle, size)
            proposals[number] = slot
            prefetch(address_of(leaves) + slot * 8)
        for number in range(num_proposals):
            slot = proposals[number]
            if random_unit(handle) * greatest < leaves[slot] + shift:
                slots[num_drawn] = slot
                num_drawn += 1
                if num_drawn == count:
                    break


@jit
def _draw_by_scan(handle: Handle, shift: float) -> int:
    """Draw one slot by summing all weights, -1 if none is positive."""
    # The fallback if the tree's rounding errors exceed the remaining weight.
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
def _draw_by_tree(handle: Handle, shift: float, count: int, slots: Ints, stratified: bool) -> int:
    """Draw at least one and up to `count` slots by walks down the tree, and return their number."""
    # Walks that rounding errors lead to a slot without weight are dropped.
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
        num_drawn = 0
        for number in range(count):
            slot = slots[number]
            if leaves[slot] + shift > 0.0:
                slots[num_drawn] = slot
                num_drawn += 1
        if num_drawn > 0:
            return num_drawn
    slots[0] = _draw_by_scan(handle, shift)
    return 1


@jit
def _draw_with_replacement(handle: Handle, shift: float, count: int) -> None:
    slots = handle.batch_slots
    stratified = handle.stratified != 0
    size = handle.size
    total = total_weight(handle, shift)
    if not stratified and (greatest_weight(handle) + shift) * size <= MAX_PROPOSALS * total:
        _draw_by_rejection(handle, shift, count, slots)
        return
    done = 0
    while done < count:
        done += _draw_by_tree(handle, shift, count - done, advance(slots, done), stratified)
        stratified = False  # draws from all slots replace the dropped walks


@jit
def _remove_from_tree(handle: Handle, shift: float, first: int, last: int) -> None:
    """Set the weights of the drawn slots first … last − 1 to zero, and save the old ones."""
    batch_slots, saved_weights, leaves = handle.batch_slots, handle.work_weights, handle.leaves
    for number in range(first, last):
        slot = batch_slots[number]
        saved_weights[number] = leaves[slot]
        leaves[slot] = 0.0 - shift
    refresh_slots(handle, advance(batch_slots, first), last - first)


@jit
def _draw_distinct(handle: Handle, shift: float, count: int) -> int:
    """Draw `count` slots without replacement, fewer only if no other slot has weight."""
    batch_slots, candidates = handle.batch_slots, handle.candidates
    leaves, size = handle.leaves, handle.size
    total = total_weight(handle, shift)
    is_even = (greatest_weight(handle) + shift) * size <= MAX_PROPOSALS * total
    # Draw with replacement, and keep first occurrences.
    num_drawn, repeats = 0, 0
    while num_drawn < count and repeats <= 2 * count + 32:
        num_candidates = count - num_drawn
        if is_even:
            _draw_by_rejection(handle, shift, num_candidates, candidates)
        else:
            num_candidates = _draw_by_tree(handle, shift, num_candidates, candidates, False)
        num_before = num_drawn
        for number in range(num_candidates):
            slot = candidates[number]
            if _is_new_slot(handle, slot):
                batch_slots[num_drawn] = slot
                num_drawn += 1
        repeats += num_candidates - (num_drawn - num_before)
    if num_drawn == count:
        return num_drawn
    # Too many repeats: remove drawn slots from the tree, and restore them at the end.
    _remove_from_tree(handle, shift, 0, num_drawn)
    num_removed = num_drawn
    while num_drawn < count and greatest_weight(handle) + shift > 0.0:
        rebase(handle, shift)
        num_candidates = _draw_by_tree(handle, shift, count - num_drawn, candidates, False)
        for number in range(num_candidates):
            slot = candidates[number]
            if _is_new_slot(handle, slot):
                batch_slots[num_drawn] = slot
                num_drawn += 1
        _remove_from_tree(handle, shift, num_removed, num_drawn)
        num_removed = num_drawn
    saved_weights = handle.work_weights
    for number in range(num_removed):
        leaves[batch_slots[number]] = saved_weights[number]
    refresh_slots(handle, batch_slots, num_removed)
    return num_drawn


@jit
def draw_slots(handle: Handle, count: int) -> int:
    """Draw a batch of `count` slots into the work space.

    Returns:
        `count`, or 0 if there are too few entries. With a strict sampler: the number of entries
        with weight, if that is less than `count`.
    """
    size = handle.size
    if size == 0 or (count > size and not handle.replacement):
        return 0
    epoch = handle.epoch + 1
    if epoch == 0x7FFFFFFF:  # clear the table, since old marks would be mistaken for new ones
        for place in range(handle.scratch_size * 4):
            handle.table[place] = 0
        epoch = 1
    handle.epoch = epoch
    replacement = handle.replacement != 0
    kind = handle.kind
    # Samplers without a tree.
    if kind == KIND_UNIFORM:
        _draw_uniform(handle, count, replacement)
        return count
    if kind == KIND_RANKS:
        draw_ranks(handle, count)
        return count
    # Draw by weight.
    shift = current_shift(handle)
    rebase(handle, shift)
    strict = handle.strict != 0 and not replacement
    state = handle.random
    saved_a, saved_b, saved_c, saved_d = state[0], state[1], state[2], state[3]
    num_weighted = 0
    if greatest_weight(handle) + shift > 0.0:
        num_weighted = count
        if replacement:
            _draw_with_replacement(handle, shift, count)
        else:
            num_weighted = _draw_distinct(handle, shift, count)
    # Too few entries have weight: refuse the batch, or fill it uniformly.
    if num_weighted < count:
        if strict:  # a refused batch does not change the random state
            state[0], state[1], state[2], state[3] = saved_a, saved_b, saved_c, saved_d
            return num_weighted
        handle.filled += count - num_weighted
        if replacement or num_weighted == 0:
            _draw_uniform(handle, count, replacement)
        else:
            _fill_uniformly(handle, num_weighted, count)
    return count
