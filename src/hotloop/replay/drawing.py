"""Which slots a batch consists of: uniform, proportional to shifted weights, with or without
repeats.

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

from hotloop.compiled import (
    jit,
    load_f64,
    load_i64,
    load_u64,
    prefetch,
    store_f64,
    store_i64,
    store_u64,
)
from hotloop.replay.native import (
    EPOCH,
    FILLED,
    KIND,
    KIND_RANKS,
    KIND_UNIFORM,
    RANDOM,
    REPLACEMENT,
    SCRATCH,
    SCRATCH_SIZE,
    SHIFT,
    SHIFT_IS_MIN,
    SIZE,
    STRATIFIED,
    STRICT,
    SUMS,
    random_below,
    random_unit,
)
from hotloop.replay.ranks import draw_ranks
from hotloop.replay.tree import (
    descend,
    greatest_weight,
    least_weight,
    rebase,
    refresh_slots,
    total_weight,
)

# Pieces of the work space, each of SCRATCH_SIZE words, the last of four times as many.
TARGETS, CANDIDATES, CHOSEN, SAVED, NUMBERS, TABLE = range(6)
SCRATCH_WORDS = 9  # in all, in units of SCRATCH_SIZE

# A uniform proposal is accepted mean/max of the time; a walk down the tree costs as much as this
# many.
MAX_PROPOSALS = 4.0
PROPOSALS = 1024  # at a time; the work space is never smaller


@jit
def scratch(handle: int, piece: int) -> int:
    """The address of a piece of the work space."""
    return load_i64(handle, SCRATCH) + piece * load_i64(handle, SCRATCH_SIZE) * 8


@jit
def current_shift(handle: int) -> float:
    """The constant that is added to every weight."""
    if load_i64(handle, SHIFT_IS_MIN):
        return max(-least_weight(handle), 0.0)
    return load_f64(handle, SHIFT)


@jit
def _first_seen(handle: int, slot: int) -> bool:
    """Whether this slot is new to the batch; remembers it."""
    table = scratch(handle, TABLE)
    mask = load_i64(handle, SCRATCH_SIZE) * 4 - 1
    epoch = load_i64(handle, EPOCH)
    place = ((slot * 2654435761) >> 12) & mask
    key = (epoch << 32) | slot
    while True:
        there = load_i64(table, place)
        if there == key:
            return False
        if (there >> 32) != epoch:
            store_i64(table, place, key)
            return True
        place = (place + 1) & mask


@jit
def _fill_uniformly(handle: int, got: int, count: int) -> None:
    """Complete the batch with slots that are not in it, each as likely as any other."""
    chosen, size = scratch(handle, CHOSEN), load_i64(handle, SIZE)
    while got < count:
        slot = random_below(handle, size)
        if _first_seen(handle, slot):
            store_i64(chosen, got, slot)
            got += 1


@jit
def _draw_uniform(handle: int, count: int, replacement: bool) -> None:
    chosen, size = scratch(handle, CHOSEN), load_i64(handle, SIZE)
    if replacement:
        for number in range(count):
            store_i64(chosen, number, random_below(handle, size))
    elif 2 * count <= size:
        _fill_uniformly(handle, 0, count)
    else:  # most of the buffer: shuffle the slots as far as is needed (Fisher and Yates)
        slots = scratch(handle, TABLE)
        for slot in range(size):
            store_i64(slots, slot, slot)
        for number in range(count):
            other = number + random_below(handle, size - number)
            store_i64(chosen, number, load_i64(slots, other))
            store_i64(slots, other, load_i64(slots, number))


@jit
def _propose(handle: int, shift: float, count: int, slots: int) -> None:
    """Draw `count` slots by rejection from a uniform proposal."""
    leaves, size = load_i64(handle, SUMS), load_i64(handle, SIZE)
    proposals = scratch(handle, TARGETS)
    greatest = greatest_weight(handle) + shift
    total = total_weight(handle, shift)
    ratio = greatest * size / total * 1.1
    got = 0
    while got < count:
        wanted = min(int((count - got) * ratio) + 4, PROPOSALS)
        for number in range(wanted):
            slot = random_below(handle, size)
            store_i64(proposals, number, slot)
            prefetch(leaves + slot * 8)
        for number in range(wanted):
            slot = load_i64(proposals, number)
            if random_unit(handle) * greatest < load_f64(leaves, slot) + shift:
                store_i64(slots, got, slot)
                got += 1
                if got == count:
                    break


@jit
def _scan(handle: int, shift: float) -> int:
    """Draw one slot by adding up all weights; -1 if none is positive.

    Where the tree's rounding errors are larger than all that is left to draw from.
    """
    leaves, size = load_i64(handle, SUMS), load_i64(handle, SIZE)
    total = 0.0
    for slot in range(size):
        total += max(load_f64(leaves, slot) + shift, 0.0)
    target = random_unit(handle) * total
    last = -1
    for slot in range(size):
        weight = load_f64(leaves, slot) + shift
        if weight > 0.0:
            last = slot
            target -= weight
            if target < 0.0:
                break
    return last


@jit
def _candidates(handle: int, shift: float, count: int, slots: int, stratified: bool) -> int:
    """Draw up to `count` slots by walks down the tree, independent and with repeats.

    Walks that rounding led to a slot without weight are left out, and with strata made up for.

    Returns:
        How many were drawn: at least one.
    """
    leaves = load_i64(handle, SUMS)
    total = total_weight(handle, shift)
    targets = scratch(handle, TARGETS)
    for _ in range(8):
        for number in range(count):
            unit = random_unit(handle)
            if stratified:
                unit = (number + unit) / count
            store_f64(targets, number, unit * total)
        descend(handle, shift, targets, slots, count, scratch(handle, NUMBERS))
        got = 0
        for number in range(count):
            slot = load_i64(slots, number)
            if load_f64(leaves, slot) + shift > 0.0:
                store_i64(slots, got, slot)
                got += 1
        if got > 0:
            return got
    store_i64(slots, 0, _scan(handle, shift))
    return 1


@jit
def _draw_with_replacement(handle: int, shift: float, count: int) -> None:
    chosen = scratch(handle, CHOSEN)
    stratified = load_i64(handle, STRATIFIED) != 0
    size = load_i64(handle, SIZE)
    total = total_weight(handle, shift)
    if not stratified and (greatest_weight(handle) + shift) * size <= MAX_PROPOSALS * total:
        _propose(handle, shift, count, chosen)
        return
    got = 0
    while got < count:
        got += _candidates(handle, shift, count - got, chosen + got * 8, stratified)
        stratified = False  # what rounding lost is drawn from the whole


@jit
def _take_out(handle: int, shift: float, first: int, last: int) -> None:
    """Give the chosen slots first … last − 1 no weight until they are put back."""
    chosen, saved, leaves = scratch(handle, CHOSEN), scratch(handle, SAVED), load_i64(handle, SUMS)
    for number in range(first, last):
        slot = load_i64(chosen, number)
        store_f64(saved, number, load_f64(leaves, slot))
        store_f64(leaves, slot, 0.0 - shift)
    refresh_slots(handle, chosen + first * 8, last - first)


@jit
def _draw_distinct(handle: int, shift: float, count: int) -> int:
    """Draw `count` slots without replacement.

    Returns:
        How many have weight; fewer than `count` only if no other slot has.
    """
    chosen, candidates = scratch(handle, CHOSEN), scratch(handle, CANDIDATES)
    leaves, size = load_i64(handle, SUMS), load_i64(handle, SIZE)
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
            slot = load_i64(candidates, number)
            if _first_seen(handle, slot):
                store_i64(chosen, got, slot)
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
            slot = load_i64(candidates, number)
            if _first_seen(handle, slot):
                store_i64(chosen, got, slot)
                got += 1
        _take_out(handle, shift, removed, got)
        removed = got
    saved = scratch(handle, SAVED)
    for number in range(removed):
        store_f64(leaves, load_i64(chosen, number), load_f64(saved, number))
    refresh_slots(handle, chosen, removed)
    return got


@jit
def draw(handle: int, count: int) -> int:
    """Choose a batch of `count` slots, into the work space.

    Returns:
        `count`; 0 if there are too few entries; or with `STRICT` the number of those that have
        weight, where that is smaller.
    """
    size = load_i64(handle, SIZE)
    if size == 0 or (count > size and not load_i64(handle, REPLACEMENT)):
        return 0
    epoch = load_i64(handle, EPOCH) + 1
    if epoch == 0x7FFFFFFF:  # the table's marks of old would be taken for new ones
        for place in range(load_i64(handle, SCRATCH_SIZE) * 4):
            store_i64(scratch(handle, TABLE), place, 0)
        epoch = 1
    store_i64(handle, EPOCH, epoch)
    replacement = load_i64(handle, REPLACEMENT) != 0
    kind = load_i64(handle, KIND)
    if kind == KIND_UNIFORM:
        _draw_uniform(handle, count, replacement)
        return count
    if kind == KIND_RANKS:
        draw_ranks(handle, count, scratch(handle, CHOSEN), scratch(handle, NUMBERS))
        return count
    shift = current_shift(handle)
    rebase(handle, shift)
    strict = load_i64(handle, STRICT) != 0 and not replacement
    random_a, random_b = load_u64(handle, RANDOM), load_u64(handle, RANDOM + 1)
    random_c, random_d = load_u64(handle, RANDOM + 2), load_u64(handle, RANDOM + 3)
    positive = 0
    if greatest_weight(handle) + shift > 0.0:
        positive = count
        if replacement:
            _draw_with_replacement(handle, shift, count)
        else:
            positive = _draw_distinct(handle, shift, count)
    if positive < count:
        if strict:  # a refused batch leaves the random numbers where they were
            store_u64(handle, RANDOM, random_a)
            store_u64(handle, RANDOM + 1, random_b)
            store_u64(handle, RANDOM + 2, random_c)
            store_u64(handle, RANDOM + 3, random_d)
            return positive
        store_i64(handle, FILLED, load_i64(handle, FILLED) + count - positive)
        if replacement or positive == 0:
            _draw_uniform(handle, count, replacement)
        else:
            _fill_uniformly(handle, positive, count)
    return count
