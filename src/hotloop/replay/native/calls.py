"""The jitted calls that a buffer makes, each with the handle's address and little else."""

from __future__ import annotations

import numpy as np

from hotloop.numba_tools import entry, jit, prefetch
from hotloop.replay.native.draw import current_shift, draw
from hotloop.replay.native.gather import gather
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    KIND_UNIFORM,
    MAX_WEIGHT,
    Handle,
    Order,
    handle_at,
    number_of,
    order_at,
)
from hotloop.replay.native.pointers import Floats, address_of, f64_at, i64_at
from hotloop.replay.native.ranks import rebuild_ranks, sum_over_ranks
from hotloop.replay.native.rows import cut_one, has_room, prepare, refresh_added, store
from hotloop.replay.native.sequences import trace
from hotloop.replay.native.tree import (
    greatest_weight,
    least_weight,
    rebuild,
    refresh_slots,
    total_weight,
)
from hotloop.replay.native.weights import default_weight, set_weight


@jit
def _describe(handle: Handle, order: Order, count: int, beta: float) -> None:
    """Write the numbers, weights, probabilities and importance of the slots that were chosen.

    Importance is (size · P)^−β over its maximum (Schaul et al. 2016, arXiv:1511.05952, section
    3.4), and the maximum belongs to the least P: it is (least P / P)^β.
    """
    slots, index = handle.chosen, order.index
    for number in range(count):
        index[number] = number_of(handle, slots[number])
    kind, size = handle.kind, handle.size
    if kind == KIND_UNIFORM:
        return
    weights, leaves = order.weight, handle.leaves
    probability = order.probability
    for number in range(count):
        weights[number] = leaves[slots[number]]
    importance, beta_alpha = order.importance, beta
    ratios = handle.saved  # weights as they were drawn by, or 1 / rank
    least = 0.0
    if kind == KIND_RANKS:
        ranks, alpha = handle.numbers, handle.rank_alpha
        whole, beta_alpha = sum_over_ranks(handle, size), beta * alpha
        for number in range(count):
            rank = float(ranks[number])
            ratios[number] = 1.0 / rank
            probability[number] = rank**-alpha / whole
        least = 1.0 / size
    else:
        shift = current_shift(handle)
        total, least = total_weight(handle, shift), least_weight(handle) + shift
        if not greatest_weight(handle) + shift > 0.0:  # then all are alike
            shift, total, least = np.nan, float(size), 1.0
        for number in range(count):
            weight = weights[number] + shift if shift == shift else 1.0
            ratios[number] = weight
            probability[number] = weight / total
    if not order.has_importance:
        return
    if not handle.whole_buffer or not least > 0.0:
        least = ratios[0]
        for number in range(count):
            least = min(least, ratios[number])
    for number in range(count):
        importance[number] = (least / ratios[number]) ** beta_alpha


@entry
def choose(at: int, order: int, count: int, beta: float) -> int:
    """Draw a batch: its numbers, weights, probabilities and importance; or sequences and a mask.

    Returns:
        `count`, or, where that is asked for strictly, how many entries have weight.
    """
    handle = handle_at(at)
    drawn = draw(handle, count)
    if drawn == count:
        if handle.following >= 0:
            trace(handle, order_at(order), count)
        else:
            _describe(handle, order_at(order), count, beta)
    return drawn


@entry
def collect(at: int, order: int, count: int) -> None:
    """Gather the `count` entries, or sequences, that were chosen last."""
    handle, wanted = handle_at(at), order_at(order)
    gather(handle, wanted.copies, wanted.num_copies, count * handle.steps)
    if wanted.num_firsts > 0:
        gather(handle, wanted.firsts, wanted.num_firsts, count)


@entry
def fetch(at: int, order: int, count: int) -> int:
    """Gather the entries whose numbers stand in the work space.

    Returns:
        `count`, or the first place whose entry is not there.
    """
    handle, wanted = handle_at(at), order_at(order)
    numbers, slots = handle.numbers, handle.chosen
    added, size = handle.added, handle.size
    for place in range(count):
        number = numbers[place]
        if number < added - size or number >= added:
            return place
        slots[place] = number % handle.capacity
        wanted.index[place] = number
        if handle.kind != KIND_UNIFORM:
            wanted.weight[place] = handle.leaves[slots[place]]
    gather(handle, wanted.copies, wanted.num_copies, count)
    return count


@jit
def _held(handle: Handle, weight: float) -> float:
    """What the tree holds for a weight as the user gave it; NaN where it is refused."""
    if handle.priorities:
        if not 0.0 <= weight < np.inf:
            return np.nan
        weight += handle.epsilon
        if handle.alpha != 1.0:
            weight = weight**handle.alpha
    return weight if abs(weight) <= MAX_WEIGHT else np.nan


@jit
def _hold_weights(handle: Handle, weights: Floats, count: int) -> int:
    for place in range(count):
        weights[place] = _held(handle, weights[place])
        if weights[place] != weights[place]:
            return place
    return count


@entry
def add_weights(at: int, weights: int, count: int) -> int:
    """Turn what a user gave as weights into what the tree holds, in place.

    Returns:
        `count`, or the first place whose weight is refused.
    """
    return _hold_weights(handle_at(at), f64_at(weights), count)


REFUSED_REWARD, REFUSED_WEIGHT = -1, -2


@entry
def write(at: int, stage: int, envs: int, weights: int, first: int, count: int) -> int:
    """Store transitions, in the order of time.

    Args:
        at: address of the handle.
        stage: their fields, one row after the other; those that lie apart have their own.
        envs: int64, (count,), their environments, −1 − e where one of e is left out, which cuts; 0:
            0 … N − 1 again and again.
        weights: float64, (count,); 0: what is usual.
        first: where to begin.
        count: where to end.

    Returns:
        `count`, or the transition before which more room is needed; or, with nothing stored, −1 −
        the first one whose reward can't be a weight.
    """
    handle = handle_at(at)
    added, position = handle.added, first
    if first == 0:
        good = prepare(handle, stage, count)
        if good < count:
            return -1 - good
    while position < count and has_room(handle):
        env = i64_at(envs)[position] if envs != 0 else position % handle.num_envs
        if env < 0:
            cut_one(handle, -1 - env)
            position += 1
            continue
        weight = f64_at(weights)[position] if weights != 0 else np.nan
        store(handle, stage + position * handle.stage_bytes, position, env, weight)
        position += 1
    refresh_added(handle, added)
    return position


@entry
def write_one(at: int, env: int, weight: float) -> int:
    """Store the one transition that is staged.

    Args:
        at: address of the handle.
        env: its environment.
        weight: as the user gave it; NaN: the usual.

    Returns:
        1; 0 if more room is needed; or, with nothing changed, `REFUSED_…`.
    """
    handle = handle_at(at)
    if weight == weight:
        weight = _held(handle, weight)
        if weight != weight:
            return REFUSED_WEIGHT
    added = handle.added
    if prepare(handle, handle.single, 1) < 1:
        return REFUSED_REWARD
    if not has_room(handle):
        return 0
    store(handle, handle.single, 0, env, weight)
    refresh_added(handle, added)
    return 1


@entry
def cut(at: int, env: int, last: int, begins: bool) -> int:
    """Close the windows of environments as they are: what comes next does not follow from them.

    Args:
        at: address of the handle.
        env: the first of them.
        last: the last one.
        begins: settle what is usual; not when it goes on after more room was made.

    Returns:
        The environment before which more room is needed; `last` + 1 at the end.
    """
    handle = handle_at(at)
    if begins:
        handle.usual = default_weight(handle)
    while env <= last:
        if not has_room(handle):
            break
        cut_one(handle, env)
        env += 1
    return env


@entry
def update(at: int, count: int) -> int:
    """Write the weights in the work space to the entries whose numbers are there.

    Returns:
        How many entries were still there; or, with nothing changed, −1 − the first place whose
        weight is refused, or −1 − `count` − the first one whose number never was.
    """
    handle = handle_at(at)
    numbers, weights, slots = handle.numbers, handle.saved, handle.chosen
    added, capacity = handle.added, handle.capacity
    oldest = added - handle.size
    is_tree = handle.kind == KIND_TREE and handle.levels >= 2
    for place in range(count):
        number = numbers[place]
        if number < 0 or number >= added:
            return -1 - count - place
        slot = number % capacity
        slots[place] = slot
        prefetch(address_of(handle.leaves) + slot * 8)
        if is_tree:  # what is dearest to wait for: the first levels of the three trees
            for tree in (handle.sums, handle.mins, handle.maxs):
                prefetch(tree[1] + (slot >> 3) * 8)
                prefetch(tree[2] + (slot >> 6) * 8)
    wrong = _hold_weights(handle, weights, count)
    if wrong < count:
        return -1 - wrong
    applied = 0
    for place in range(count):
        if numbers[place] >= oldest:
            slot = slots[place]
            set_weight(handle, slot, weights[place])
            slots[applied] = slot
            applied += 1
    if handle.kind == KIND_TREE:
        refresh_slots(handle, slots, applied)
    handle.stale += count - applied
    return applied


@entry
def rebuild_weights(at: int) -> None:
    """Make everything that follows from the weights anew."""
    handle = handle_at(at)
    if handle.kind == KIND_TREE:
        rebuild(handle)
    elif handle.kind == KIND_RANKS:
        rebuild_ranks(handle)
