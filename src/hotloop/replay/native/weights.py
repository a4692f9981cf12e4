"""Weights of new entries, and of episodes once they have ended."""

from __future__ import annotations

from hotloop.numba_tools import jit
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
from hotloop.replay.native.sequences import follow
from hotloop.replay.native.tree import greatest_weight, rebase, refresh_slots, total_weight


@jit
def set_weight(handle: Handle, slot: int, weight: float) -> None:
    """Write an entry's weight; the tree is brought up to date later, ranks at once."""
    leaves = handle.leaves
    if handle.kind == KIND_RANKS:
        remove_rank(handle, slot, leaves[slot])
        insert_rank(handle, slot, weight)
    elif not handle.shift_is_min:
        weight = max(weight, -current_shift(handle))
    leaves[slot] = weight


@jit
def default_weight(handle: Handle) -> float:
    """What a new entry weighs if nothing else is said, as the buffer stands."""
    kind, weights = handle.kind, handle.weights
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
        return handle.running
    return 0.0


@jit
def end_episode(handle: Handle, env: int) -> None:
    """Give an ended episode's entries the weights that its rewards decide."""
    capacity = handle.capacity
    number = handle.env_last[env]
    oldest = handle.added - handle.size
    first = max(handle.env_first[env], oldest)
    to_go = handle.weights == WEIGHT_RETURN_TO_GO
    gamma, previous_at = handle.gamma, handle.previous
    episode_return = handle.env_return[env]
    raw_at = handle.raw_reward
    written, slots = 0, handle.proposals
    value = 0.0
    while number >= first:
        slot = number % capacity
        if to_go:
            value = f32_at(row_at(handle, slot) + raw_at)[0] + gamma * value
        set_weight(handle, slot, value if to_go else episode_return)
        slots[written] = slot
        written += 1
        if written == 256:
            if handle.kind == KIND_TREE:
                refresh_slots(handle, slots, written)
            written = 0
        if previous_at < 0:
            number -= 1
        else:
            back = i32_at(row_at(handle, slot) + previous_at)[0]
            number -= back
            if back == 0:
                break
    if handle.kind == KIND_TREE:
        refresh_slots(handle, slots, written)


@jit
def account(handle: Handle, slot: int, env: int, reward: float, ended: bool, weight: float) -> None:
    """Weigh a new entry, and its whole episode if that has ended; say what it follows.

    Args:
        handle: the buffer's.
        slot: where it lies.
        env: its environment.
        reward: its own, of one step.
        ended: whether its own step ended the episode.
        weight: what it was given; NaN: the usual.
    """
    if handle.following >= 0:  # then nothing has weights
        follow(handle, slot, env, ended)
        return
    weights = handle.weights
    if weight != weight:
        weight = handle.usual
    if weights >= WEIGHT_EPISODE_RETURN:
        returns, last = handle.env_return, handle.env_last
        number = handle.added - 1
        before = last[env]
        if before < 0:
            handle.env_first[env] = number
            returns[env] = 0.0
        if handle.previous >= 0:
            back = number - before if before >= 0 else 0
            i32_at(row_at(handle, slot) + handle.previous)[0] = min(back, 0x7FFFFFFF)
        if handle.raw_reward != handle.reward:
            f32_at(row_at(handle, slot) + handle.raw_reward)[0] = reward
        last[env] = number
        returns[env] += reward
        if weights == WEIGHT_RETURN_SO_FAR:
            weight = returns[env]
    if handle.kind == KIND_RANKS:
        handle.leaves[slot] = weight
        insert_rank(handle, slot, weight)
    elif handle.kind == KIND_TREE:
        set_weight(handle, slot, weight)
    if ended and weights >= WEIGHT_EPISODE_RETURN:
        if weights != WEIGHT_RETURN_SO_FAR:
            end_episode(handle, env)
        handle.env_last[env] = -1
