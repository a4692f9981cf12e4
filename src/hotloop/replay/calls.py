"""The jitted calls that a buffer makes, each with the handle's address and little else."""

from __future__ import annotations

import numpy as np

from hotloop.compiled import (
    entry,
    jit,
    load_f64,
    load_i64,
    prefetch,
    store_f32,
    store_f64,
    store_i64,
)
from hotloop.replay.drawing import CHOSEN, NUMBERS, SAVED, current_shift, draw, scratch
from hotloop.replay.native import (
    ADDED,
    ALPHA,
    CAPACITY,
    EPSILON,
    KIND,
    KIND_RANKS,
    KIND_TREE,
    KIND_UNIFORM,
    LEVELS,
    MAX_WEIGHT,
    MAXS,
    MINS,
    PRIORITIES,
    RANK_ALPHA,
    SINGLE,
    SIZE,
    STALE,
    SUMS,
    WHOLE_BUFFER,
    number_of,
)
from hotloop.replay.ranks import rebuild_ranks, sum_over_ranks
from hotloop.replay.rows import cut, gather, set_weight, write
from hotloop.replay.tree import (
    greatest_weight,
    least_weight,
    rebuild,
    refresh_slots,
    total_weight,
)

__all__ = [
    "add_weights",
    "choose",
    "collect",
    "cut",
    "fetch",
    "rebuild_weights",
    "update",
    "write",
    "write_one",
]

# The words of a batch's order: addresses of what it wants to know besides its fields (0: nothing),
# then the fields, as `gather` takes them.
INDEX, WEIGHT, PROBABILITY, IMPORTANCE, NUM_COPIES, COPIES = range(6)


@jit
def _describe(handle: int, order: int, count: int, beta: float) -> None:
    """Write the numbers, weights, probabilities and importance of the slots that were chosen.

    Importance is (size · P)^−β over its maximum (Schaul et al. 2016, arXiv:1511.05952, section
    3.4), and the maximum belongs to the least P: it is (least P / P)^β.
    """
    slots, index = scratch(handle, CHOSEN), load_i64(order, INDEX)
    for number in range(count):
        store_i64(index, number, number_of(handle, load_i64(slots, number)))
    kind, size = load_i64(handle, KIND), load_i64(handle, SIZE)
    if kind == KIND_UNIFORM:
        return
    weights, leaves = load_i64(order, WEIGHT), load_i64(handle, SUMS)
    probability = load_i64(order, PROBABILITY)
    for number in range(count):
        store_f64(weights, number, load_f64(leaves, load_i64(slots, number)))
    importance, beta_alpha = load_i64(order, IMPORTANCE), beta
    ratios = scratch(handle, SAVED)  # weights as they were drawn by, or 1 / rank
    least = 0.0
    if kind == KIND_RANKS:
        ranks, alpha = scratch(handle, NUMBERS), load_f64(handle, RANK_ALPHA)
        whole, beta_alpha = sum_over_ranks(handle, size), beta * alpha
        for number in range(count):
            rank = float(load_i64(ranks, number))
            store_f64(ratios, number, 1.0 / rank)
            store_f64(probability, number, rank**-alpha / whole)
        least = 1.0 / size
    else:
        shift = current_shift(handle)
        total, least = total_weight(handle, shift), least_weight(handle) + shift
        if not greatest_weight(handle) + shift > 0.0:  # then all are alike
            shift, total, least = np.nan, float(size), 1.0
        for number in range(count):
            weight = load_f64(weights, number) + shift if shift == shift else 1.0
            store_f64(ratios, number, weight)
            store_f64(probability, number, weight / total)
    if importance == 0:
        return
    if not load_i64(handle, WHOLE_BUFFER) or not least > 0.0:
        least = load_f64(ratios, 0)
        for number in range(count):
            least = min(least, load_f64(ratios, number))
    for number in range(count):
        store_f32(importance, number, (least / load_f64(ratios, number)) ** beta_alpha)


@entry
def choose(handle: int, order: int, count: int, beta: float) -> int:
    """Draw a batch: its numbers, weights, probabilities and importance.

    Returns:
        `count`, or, where that is asked for strictly, how many entries have weight.
    """
    drawn = draw(handle, count)
    if drawn == count:
        _describe(handle, order, count, beta)
    return drawn


@entry
def collect(handle: int, order: int, count: int) -> None:
    """Gather the entries that were chosen last."""
    num_copies = load_i64(order, NUM_COPIES)
    gather(handle, scratch(handle, CHOSEN), count, order + COPIES * 8, num_copies)


@entry
def fetch(handle: int, order: int, count: int) -> int:
    """Gather the entries whose numbers stand in the work space.

    Returns:
        `count`, or the first place whose entry is not there.
    """
    numbers, slots = scratch(handle, NUMBERS), scratch(handle, CHOSEN)
    added, size = load_i64(handle, ADDED), load_i64(handle, SIZE)
    for place in range(count):
        number = load_i64(numbers, place)
        if number < added - size or number >= added:
            return place
        store_i64(slots, place, number % load_i64(handle, CAPACITY))
        store_i64(load_i64(order, INDEX), place, number)
        if load_i64(handle, KIND) != KIND_UNIFORM:
            weight = load_f64(load_i64(handle, SUMS), load_i64(slots, place))
            store_f64(load_i64(order, WEIGHT), place, weight)
    gather(handle, slots, count, order + COPIES * 8, load_i64(order, NUM_COPIES))
    return count


@entry
def add_weights(handle: int, weights: int, count: int) -> int:
    """Turn what a user gave as weights into what the tree holds, in place.

    Returns:
        `count`, or the first place whose weight is refused.
    """
    priorities = load_i64(handle, PRIORITIES) != 0
    alpha, epsilon = load_f64(handle, ALPHA), load_f64(handle, EPSILON)
    for place in range(count):
        weight = load_f64(weights, place)
        if priorities:
            if not 0.0 <= weight < np.inf:
                return place
            if alpha != 1.0:
                weight = (weight + epsilon) ** alpha
            else:
                weight += epsilon
            store_f64(weights, place, weight)
        if not abs(weight) <= MAX_WEIGHT:
            return place
    return count


REFUSED_REWARD, REFUSED_WEIGHT = -1, -2


@entry
def write_one(handle: int, env: int, weight: float) -> int:
    """Store the one transition that is staged.

    Args:
        handle: the buffer's.
        env: its environment.
        weight: as the user gave it; NaN: the usual.

    Returns:
        1; 0 if more room is needed; or, with nothing changed, `REFUSED_…`.
    """
    given = scratch(handle, SAVED)
    store_i64(given, 0, env)
    store_f64(given, 1, weight)
    if weight == weight and add_weights(handle, given + 8, 1) == 0:
        return REFUSED_WEIGHT
    return write(handle, load_i64(handle, SINGLE), given, given + 8, 0, 1)


@entry
def update(handle: int, count: int) -> int:
    """Write the weights in the work space to the entries whose numbers are there.

    Returns:
        How many entries were still there; or, with nothing changed, −1 − the first place whose
        weight is refused, or −1 − `count` − the first one whose number never was.
    """
    numbers, weights, slots = (
        scratch(handle, NUMBERS),
        scratch(handle, SAVED),
        scratch(handle, CHOSEN),
    )
    added, capacity = load_i64(handle, ADDED), load_i64(handle, CAPACITY)
    oldest = added - load_i64(handle, SIZE)
    leaves = load_i64(handle, SUMS)
    is_tree = load_i64(handle, KIND) == KIND_TREE and load_i64(handle, LEVELS) >= 2
    for place in range(count):
        number = load_i64(numbers, place)
        if number < 0 or number >= added:
            return -1 - count - place
        slot = number % capacity
        store_i64(slots, place, slot)
        prefetch(leaves + slot * 8)
        if is_tree:  # what is dearest to wait for: the first levels of the three trees
            for word in (SUMS, MINS, MAXS):
                prefetch(load_i64(handle, word + 1) + (slot >> 3) * 8)
                prefetch(load_i64(handle, word + 2) + (slot >> 6) * 8)
    wrong = add_weights(handle, weights, count)
    if wrong < count:
        return -1 - wrong
    applied = 0
    for place in range(count):
        if load_i64(numbers, place) >= oldest:
            slot = load_i64(slots, place)
            set_weight(handle, slot, load_f64(weights, place))
            store_i64(slots, applied, slot)
            applied += 1
    if load_i64(handle, KIND) == KIND_TREE:
        refresh_slots(handle, slots, applied)
    store_i64(handle, STALE, load_i64(handle, STALE) + count - applied)
    return applied


@entry
def rebuild_weights(handle: int) -> None:
    """Make everything that follows from the weights anew."""
    if load_i64(handle, KIND) == KIND_TREE:
        rebuild(handle)
    elif load_i64(handle, KIND) == KIND_RANKS:
        rebuild_ranks(handle)
