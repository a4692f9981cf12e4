"""Compiled entry points of a buffer. Each one takes the address of the handle."""

from __future__ import annotations

import numpy as np

from hotloop.base.numba_tools import entry, jit, prefetch
from hotloop.replay.native.draw import current_shift, draw_slots
from hotloop.replay.native.gather import gather
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    KIND_UNIFORM,
    MAX_WEIGHT,
    BatchRecord,
    Handle,
    batch_at,
    entry_number,
    handle_at,
)
from hotloop.replay.native.pointers import Floats, address_of, f64_at, i64_at
from hotloop.replay.native.ranks import rebuild_ranks, sum_over_ranks
from hotloop.replay.native.rows import cut_env, has_room, prepare, refresh_added, store
from hotloop.replay.native.sequences import trace_sequences
from hotloop.replay.native.tree import (
    greatest_weight,
    least_weight,
    rebuild,
    refresh_slots,
    total_weight,
)
from hotloop.replay.native.weights import default_weight, set_weight


@jit
def _describe_batch(handle: Handle, batch: BatchRecord, count: int, beta: float) -> None:
    """Write numbers, weights, probabilities and importance of the drawn slots to the batch."""
    # Importance is (size · P)^−β divided by its maximum (Schaul et al. 2016, arXiv:1511.05952,
    # section 3.4). The entry with the least P has the maximum, so importance is (least P / P)^β.
    slots, index = handle.batch_slots, batch.index
    for row in range(count):
        index[row] = entry_number(handle, slots[row])
    kind, size = handle.kind, handle.size
    if kind == KIND_UNIFORM:
        return
    weights, leaves = batch.weight, handle.leaves
    probability = batch.probability
    for row in range(count):
        weights[row] = leaves[slots[row]]
    importance, beta_alpha = batch.importance, beta
    ratios = handle.work_weights  # shifted weights, or 1 / rank
    least = 0.0
    # Probabilities, by rank or by shifted weight.
    if kind == KIND_RANKS:
        ranks, alpha = handle.numbers, handle.rank_alpha
        rank_sum, beta_alpha = sum_over_ranks(handle, size), beta * alpha
        for row in range(count):
            rank = float(ranks[row])
            ratios[row] = 1.0 / rank
            probability[row] = rank**-alpha / rank_sum
        least = 1.0 / size
    else:
        shift = current_shift(handle)
        total, least = total_weight(handle, shift), least_weight(handle) + shift
        if not greatest_weight(handle) + shift > 0.0:  # then all entries are equally likely
            shift, total, least = np.nan, float(size), 1.0
        for row in range(count):
            weight = weights[row] + shift if shift == shift else 1.0
            ratios[row] = weight
            probability[row] = weight / total
    # Importance weights.
    if not batch.has_importance:
        return
    if not handle.whole_buffer or not least > 0.0:
        least = ratios[0]
        for row in range(count):
            least = min(least, ratios[row])
    for row in range(count):
        importance[row] = (least / ratios[row]) ** beta_alpha


@entry
def draw_batch(address: int, batch_address: int, count: int, beta: float) -> int:
    """Draw a batch: its numbers, weights, probabilities and importance, or sequences and a mask.

    Returns:
        `count`, or less if the buffer has too few entries, see `draw_slots`.
    """
    handle = handle_at(address)
    num_drawn = draw_slots(handle, count)
    if num_drawn == count:
        if handle.following >= 0:
            trace_sequences(handle, batch_at(batch_address), count)
        else:
            _describe_batch(handle, batch_at(batch_address), count, beta)
    return num_drawn


@entry
def gather_batch(address: int, batch_address: int, count: int) -> None:
    """Gather the `count` entries or sequences that were drawn last."""
    handle, batch = handle_at(address), batch_at(batch_address)
    gather(handle, batch.copies, batch.num_copies, count * handle.steps)
    if batch.num_first_copies > 0:
        gather(handle, batch.first_copies, batch.num_first_copies, count)


@entry
def gather_entries(address: int, batch_address: int, count: int) -> int:
    """Gather the entries whose numbers are in the work space.

    Returns:
        `count`, or the position of the first entry that is not in the buffer.
    """
    handle, batch = handle_at(address), batch_at(batch_address)
    numbers, slots = handle.numbers, handle.batch_slots
    added, size = handle.added, handle.size
    for position in range(count):
        number = numbers[position]
        if number < added - size or number >= added:
            return position
        slots[position] = number % handle.capacity
        batch.index[position] = number
        if handle.kind != KIND_UNIFORM:
            batch.weight[position] = handle.leaves[slots[position]]
    gather(handle, batch.copies, batch.num_copies, count)
    return count


@jit
def _tree_weight(handle: Handle, weight: float) -> float:
    """Return the weight that the tree stores for a user's weight, NaN if that is invalid."""
    if handle.has_priorities:
        if not 0.0 <= weight < np.inf:
            return np.nan
        weight += handle.epsilon
        if handle.alpha != 1.0:
            weight = weight**handle.alpha
    return weight if abs(weight) <= MAX_WEIGHT else np.nan


@jit
def _convert_weights(handle: Handle, weights: Floats, count: int) -> int:
    for position in range(count):
        weights[position] = _tree_weight(handle, weights[position])
        if weights[position] != weights[position]:
            return position
    return count


@entry
def convert_weights(address: int, weights: int, count: int) -> int:
    """Convert a user's weights, in place, into those that the tree stores.

    Returns:
        `count`, or the position of the first invalid weight.
    """
    return _convert_weights(handle_at(address), f64_at(weights), count)


REFUSED_REWARD, REFUSED_WEIGHT = -1, -2


@entry
def write_batch(address: int, stage: int, envs: int, weights: int, first: int, count: int) -> int:
    """Store transitions in the order of time.

    Args:
        address: address of the handle.
        stage: address of the staged rows. Frame pools have their own staging addresses.
        envs: address of the environments, int64, (count,). −1 − e cuts environment e instead of
            storing a transition. 0: 0 … N − 1, repeated.
        weights: address of the weights, float64, (count,). 0: the default weight.
        first: position of the first transition to store.
        count: number of transitions in `stage`.

    Returns:
        `count`, or the position of the transition that needs more room. −1 − position of the first
        reward that can't be a weight, and nothing is stored.
    """
    handle = handle_at(address)
    added, position = handle.added, first
    if first == 0:
        num_valid = prepare(handle, stage, count)
        if num_valid < count:
            return -1 - num_valid
    while position < count and has_room(handle):
        env = i64_at(envs)[position] if envs != 0 else position % handle.num_envs
        if env < 0:
            cut_env(handle, -1 - env)
            position += 1
            continue
        weight = f64_at(weights)[position] if weights != 0 else np.nan
        store(handle, stage + position * handle.stage_bytes, position, env, weight)
        position += 1
    refresh_added(handle, added)
    return position


@entry
def write_one(address: int, env: int, weight: float) -> int:
    """Store the single staged transition, with the user's weight or, if NaN, the default one.

    Returns:
        1 if it was stored, 0 if it needs more room, or `REFUSED_…`, and nothing is changed.
    """
    handle = handle_at(address)
    if weight == weight:
        weight = _tree_weight(handle, weight)
        if weight != weight:
            return REFUSED_WEIGHT
    added = handle.added
    if prepare(handle, handle.staged_row, 1) < 1:
        return REFUSED_REWARD
    if not has_room(handle):
        return 0
    store(handle, handle.staged_row, 0, env, weight)
    refresh_added(handle, added)
    return 1


@entry
def cut_envs(address: int, env: int, last: int, is_first_call: bool) -> int:
    """Close the incomplete windows of environments `env` … `last`.

    Repeat the call, with False for `is_first_call`, after the buffer has grown.

    Returns:
        The environment that needs more room, or `last` + 1 at the end.
    """
    handle = handle_at(address)
    if is_first_call:
        handle.new_weight = default_weight(handle)
    while env <= last:
        if not has_room(handle):
            break
        cut_env(handle, env)
        env += 1
    return env


@entry
def write_weights(address: int, count: int) -> int:
    """Write the weights in the work space to the entries whose numbers are in the work space.

    Returns:
        The number of entries that were still in the buffer. On an error, with nothing changed: −1 −
        position of the first invalid weight, or −1 − `count` − position of the first number that
        no entry ever had.
    """
    handle = handle_at(address)
    numbers, weights, slots = handle.numbers, handle.work_weights, handle.batch_slots
    added, capacity = handle.added, handle.capacity
    oldest = added - handle.size
    is_tree = handle.kind == KIND_TREE and handle.levels >= 2
    for position in range(count):
        number = numbers[position]
        if number < 0 or number >= added:
            return -1 - count - position
        slot = number % capacity
        slots[position] = slot
        prefetch(address_of(handle.leaves) + slot * 8)
        if is_tree:  # prefetch the lowest levels of the three trees, whose cache misses cost most
            for tree in (handle.sums, handle.mins, handle.maxs):
                prefetch(tree[1] + (slot >> 3) * 8)
                prefetch(tree[2] + (slot >> 6) * 8)
    num_valid = _convert_weights(handle, weights, count)
    if num_valid < count:
        return -1 - num_valid
    num_applied = 0
    for position in range(count):
        if numbers[position] >= oldest:
            slot = slots[position]
            set_weight(handle, slot, weights[position])
            slots[num_applied] = slot
            num_applied += 1
    if handle.kind == KIND_TREE:
        refresh_slots(handle, slots, num_applied)
    handle.stale += count - num_applied
    return num_applied


@entry
def rebuild_weights(address: int) -> None:
    """Recompute the tree or the ranks from the weights."""
    handle = handle_at(address)
    if handle.kind == KIND_TREE:
        rebuild(handle)
    elif handle.kind == KIND_RANKS:
        rebuild_ranks(handle)
