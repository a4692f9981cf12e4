"""Weights of new entries and of ended episodes."""

from __future__ import annotations

from hotloop.base.numba_tools import jit
from hotloop.replay.native.draw import current_shift
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    WEIGHT_EPISODE_RETURN,
    WEIGHT_MAX,
    WEIGHT_RETURN_SO_FAR,
    WEIGHT_RETURN_TO_GO,
    Handle,
    row_at,
)
from hotloop.replay.native.pointers import f32_at, i32_at
from hotloop.replay.native.ranks import greatest_rank, insert_rank, remove_rank
from hotloop.replay.native.sequences import link_entry
from hotloop.replay.native.tree import greatest_weight, rebase, refresh_slots, total_weight


@jit
def set_weight(handle: Handle, slot: int, weight: float) -> None:
    """Write an entry's weight. Ranks are updated immediately, the tree later."""
    leaves = handle.leaves
    if handle.kind == KIND_RANKS:
        remove_rank(handle, slot, leaves[slot])
        insert_rank(handle, slot, weight)
    elif not handle.shift_is_min:
        weight = max(weight, -current_shift(handle))
    leaves[slot] = weight


@jit
def default_weight(handle: Handle) -> float:
    """Return the current default weight of a new entry."""
    kind, weights = handle.kind, handle.weight_rule
    if weights == WEIGHT_MAX:
        greatest = greatest_rank(handle) if kind == KIND_RANKS else greatest_weight(handle)
        return greatest if handle.size > 0 else 1.0
    if weights >= WEIGHT_EPISODE_RETURN:
        if handle.running_is_mean:
            size = handle.size
            if size == 0:
                return 0.0
            rebase(handle, current_shift(handle))
            return total_weight(handle, 0.0) / size
        return handle.running_weight
    return 0.0


@jit
def weigh_episode(handle: Handle, env: int) -> None:
    """Set the weights of an ended episode's entries from its rewards."""
    capacity = handle.capacity
    number = handle.env_last[env]
    oldest = handle.added - handle.size
    first = max(handle.env_first[env], oldest)
    is_return_to_go = handle.weight_rule == WEIGHT_RETURN_TO_GO
    gamma, previous_at = handle.gamma, handle.previous
    episode_return = handle.env_return[env]
    raw_at = handle.raw_reward
    num_written, slots = 0, handle.proposals
    value = 0.0
    while number >= first:
        slot = number % capacity
        if is_return_to_go:
            value = f32_at(row_at(handle, slot) + raw_at)[0] + gamma * value
        set_weight(handle, slot, value if is_return_to_go else episode_return)
        slots[num_written] = slot
        num_written += 1
        if num_written == 256:
            if handle.kind == KIND_TREE:
                refresh_slots(handle, slots, num_written)
            num_written = 0
        if previous_at < 0:
            number -= 1
        else:
            distance = i32_at(row_at(handle, slot) + previous_at)[0]
            number -= distance
            if distance == 0:
                break
    if handle.kind == KIND_TREE:
        refresh_slots(handle, slots, num_written)


@jit
def weigh(handle: Handle, slot: int, env: int, reward: float, is_end: bool, weight: float) -> None:
    """Set the weight of a new entry (NaN: the default), and of its whole episode if that has ended.

    `reward` and `is_end` are those of the entry's own step. Buffers for sequences link the entry
    with its predecessor instead.
    """
    if handle.following >= 0:  # a buffer for sequences: entries have no weights
        link_entry(handle, slot, env, is_end)
        return
    rule = handle.weight_rule
    if weight != weight:
        weight = handle.new_weight
    if rule >= WEIGHT_EPISODE_RETURN:
        returns, last = handle.env_return, handle.env_last
        number = handle.added - 1
        previous = last[env]
        if previous < 0:
            handle.env_first[env] = number
            returns[env] = 0.0
        if handle.previous >= 0:
            distance = number - previous if previous >= 0 else 0
            i32_at(row_at(handle, slot) + handle.previous)[0] = min(distance, 0x7FFFFFFF)
        if handle.raw_reward != handle.reward:
            f32_at(row_at(handle, slot) + handle.raw_reward)[0] = reward
        last[env] = number
        returns[env] += reward
        if rule == WEIGHT_RETURN_SO_FAR:
            weight = returns[env]
    if handle.kind == KIND_RANKS:
        handle.leaves[slot] = weight
        insert_rank(handle, slot, weight)
    elif handle.kind == KIND_TREE:
        set_weight(handle, slot, weight)
    if is_end and rule >= WEIGHT_EPISODE_RETURN:
        if rule != WEIGHT_RETURN_SO_FAR:
            weigh_episode(handle, env)
        handle.env_last[env] = -1
