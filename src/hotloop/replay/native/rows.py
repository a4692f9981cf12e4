"""Writing of transitions into rows, and sharing of observations between them.

A row stores the small fields of one transition side by side, so that gathering it touches few cache
lines. Fields above 1 KB (images) are frames in a pool, and the row stores their numbers.

With sharing, a row has no `next_obs` but a link to the place of that observation:

    0 … capacity − 1 the row of the same environment's next transition
    HEAD + h            head h: the next transition is not stored yet
    −1 − f              final observation f: no transition starts with it, as after an episode's end

Observations are compared byte for byte before they are shared, so links are always valid.

Each environment has `n_step` heads, in which its latest transitions wait until their windows are
complete. Step s waits in head s mod n. When it is stored, its head receives the observation that
follows its window, with which step s + n starts. With n = 1 a transition is stored immediately.
"""

from __future__ import annotations

import numpy as np

from hotloop.base.numba_tools import copy_bytes, jit, same_bytes
from hotloop.replay.native.frames import hold_frame, release_frames, same_stack, store_stack
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    WEIGHT_EPISODE_RETURN,
    WEIGHT_RETURN_SO_FAR,
    Handle,
    frame_pool,
    row_at,
    wide,
)
from hotloop.replay.native.pointers import address_of, f32_at, i32_at, u8_at
from hotloop.replay.native.ranks import remove_rank
from hotloop.replay.native.tree import refresh_range
from hotloop.replay.native.weights import default_weight, weigh, weigh_episode

HEAD = 1 << 30  # links from this value on lead to heads


@jit
def _store_final(handle: Handle, source: int) -> int:
    """Copy an observation that no transition starts with, and return the link to it."""
    num_free = handle.finals_num_free - 1
    handle.finals_num_free = num_free
    final = wide(handle.finals_free[num_free])
    size = handle.obs_bytes
    copy_bytes(handle.finals + final * size, source, size)
    return -1 - final


@jit
def head_at(handle: Handle, head: int) -> int:
    """Return the address of a head."""
    return handle.heads + head * handle.row_bytes


@jit
def _set_link(handle: Handle, slot: int, link: int) -> None:
    i32_at(row_at(handle, slot) + handle.link)[0] = link


@jit
def _claim_slot(handle: Handle) -> int:
    """Free the slot of the next entry, count the entry, and return the slot."""
    capacity, added = handle.capacity, handle.added
    slot = added % capacity
    if added >= capacity:  # release the links and frames of the oldest entry
        row, link_at = row_at(handle, slot), handle.link
        if link_at >= 0:
            link = wide(i32_at(row + link_at)[0])
            if link >= HEAD:
                handle.linking_slots[link - HEAD] = -1
            elif link < 0:
                num_free = handle.finals_num_free
                handle.finals_free[num_free] = -1 - link
                handle.finals_num_free = num_free + 1
        for pool_index in range(handle.num_pools):
            pool = frame_pool(handle, pool_index)
            release_frames(pool, i32_at(row + pool.refs))
            if pool.next_refs >= 0:
                release_frames(pool, i32_at(row + pool.next_refs))
        if handle.kind == KIND_RANKS:
            remove_rank(handle, slot, handle.leaves[slot])
    handle.added = added + 1
    handle.size = min(added + 1, capacity)
    return slot


@jit
def _is_end(handle: Handle, row: int) -> bool:
    terminated, truncated = handle.terminated, handle.truncated
    if terminated >= 0 and u8_at(row + terminated)[0]:
        return True
    return truncated >= 0 and u8_at(row + truncated)[0] != 0


@jit
def _step_reward(handle: Handle, row: int) -> float:
    if handle.reward < 0:
        return 0.0
    return float(f32_at(row + handle.reward)[0])


@jit
def _store_plain(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition without sharing."""
    slot = _claim_slot(handle)
    row = row_at(handle, slot)
    copy_bytes(row, stage, handle.plain_bytes)
    for pool_index in range(handle.num_pools):
        pool = frame_pool(handle, pool_index)
        size = pool.frame_bytes * pool.stack
        source = pool.stage + position * size
        store_stack(pool, source, 0, i32_at(row + pool.refs))
    weigh(handle, slot, env, _step_reward(handle, row), _is_end(handle, row), weight)


@jit
def _store_head(
    handle: Handle, env: int, step: int, last: int, is_closing: bool, next_obs: int
) -> None:
    """Move a step from its head into a row, with the discounted rewards of its window."""
    # `last` ends the window. `next_obs` is the address of the next observation, if `is_closing`.
    n_step = handle.n_step
    index = env * n_step + step % n_step
    head = head_at(handle, index)
    slot = _claim_slot(handle)
    row = row_at(handle, slot)
    copy_bytes(row, head, handle.row_bytes)
    weight = handle.head_weights[index]
    # Sum the rewards of the window. The flags come from its last step.
    if n_step > 1:
        gamma, reward_at = handle.gamma, handle.reward
        total, discount = 0.0, 1.0
        for later in range(last, step - 1, -1):
            later_head = head_at(handle, env * n_step + later % n_step)
            total = f32_at(later_head + reward_at)[0] + gamma * total
            discount *= gamma
        final = head_at(handle, env * n_step + last % n_step)
        terminated_at, truncated_at = handle.terminated, handle.truncated
        terminated = u8_at(final + terminated_at)[0]
        f32_at(row + reward_at)[0] = total
        u8_at(row + terminated_at)[0] = terminated
        if truncated_at >= 0:
            u8_at(row + truncated_at)[0] = u8_at(final + truncated_at)[0]
        f32_at(row + handle.discount)[0] = 0.0 if terminated else discount
    for pool_index in range(handle.num_pools):  # the row already has the frame numbers of `obs`
        pool = frame_pool(handle, pool_index)
        if pool.next_refs >= 0:
            next_frames = pool.next_frames
            for place in range(pool.stack):
                number = hold_frame(pool, wide(next_frames[place]))
                i32_at(row + pool.next_refs)[place] = number
    # Link the row with its successor, and its predecessor with the row.
    if handle.link >= 0:
        linking_slots = handle.linking_slots
        linking_slot = wide(linking_slots[index])
        if linking_slot >= 0:
            _set_link(handle, linking_slot, slot)
        if is_closing:
            linking_slots[index] = -1
            _set_link(handle, slot, _store_final(handle, next_obs))
        else:
            linking_slots[index] = slot
            _set_link(handle, slot, HEAD + index)
    weigh(handle, slot, env, _step_reward(handle, head), _is_end(handle, head), weight)


@jit
def _write_head(handle: Handle, stage: int, position: int, env: int, step: int) -> None:
    """Write a transition into its head, and unlink the old observation if the new one differs."""
    n_step = handle.n_step
    index = env * n_step + step % n_step
    head = head_at(handle, index)
    pending = handle.env_pending[env] != 0
    obs_bytes = handle.obs_bytes
    if handle.link >= 0:
        linking_slot = wide(handle.linking_slots[index])
        if linking_slot >= 0 and not same_bytes(stage, head, obs_bytes):
            _set_link(handle, linking_slot, _store_final(handle, head))
            handle.linking_slots[index] = -1
    for pool_index in range(handle.num_pools):
        pool = frame_pool(handle, pool_index)
        size = pool.frame_bytes * pool.stack
        source, refs = pool.stage + position * size, i32_at(head + pool.refs)
        if pending and pool.next_refs >= 0:
            if same_stack(pool, source, refs):
                continue
            release_frames(pool, refs)
        store_stack(pool, source, 0, refs)
    copy_bytes(head, stage, handle.plain_bytes)


@jit
def _store_linked(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition whose next observation may be shared."""
    n_step = handle.n_step
    step = handle.env_steps[env]
    index = env * n_step + step % n_step
    waiting = handle.env_waiting[env] + 1
    _write_head(handle, stage, position, env, step)
    handle.head_weights[index] = weight
    head = head_at(handle, index)
    for pool_index in range(handle.num_pools):
        pool = frame_pool(handle, pool_index)
        if pool.next_refs >= 0:
            size = pool.frame_bytes * pool.stack
            source = pool.next_stage + position * size
            refs = head + pool.refs
            store_stack(pool, source, refs, pool.next_frames)
    # Store the steps whose windows are complete.
    next_obs = stage + handle.stage_next
    is_end = _is_end(handle, head)
    if is_end:
        for earlier in range(step - waiting + 1, step + 1):
            _store_head(handle, env, earlier, step, True, next_obs)
        waiting = 0
    elif waiting == n_step:
        _store_head(handle, env, step - n_step + 1, step, False, next_obs)
        waiting -= 1
    # Keep the next observation in the next head.
    following = head_at(handle, env * n_step + (step + 1) % n_step)
    if not is_end:
        copy_bytes(following, next_obs, handle.obs_bytes)
    for pool_index in range(handle.num_pools):
        pool = frame_pool(handle, pool_index)
        if pool.next_refs >= 0:
            next_frames = pool.next_frames
            if is_end:
                release_frames(pool, next_frames)
            else:
                copy_bytes(following + pool.refs, address_of(next_frames), pool.stack * 4)
    handle.env_pending[env] = 0 if is_end else 1
    handle.env_waiting[env] = waiting
    handle.env_steps[env] = step + 1


@jit
def cut_env(handle: Handle, env: int) -> None:
    """Close the incomplete windows of an environment."""
    if handle.shares_next_obs:
        n_step = handle.n_step
        step = handle.env_steps[env]
        waiting = handle.env_waiting[env]
        added = handle.added
        index = env * n_step + step % n_step
        following = head_at(handle, index)
        pending = handle.env_pending[env] != 0
        if pending:
            for pool_index in range(handle.num_pools):
                pool = frame_pool(handle, pool_index)
                if pool.next_refs >= 0:
                    refs = following + pool.refs
                    copy_bytes(address_of(pool.next_frames), refs, pool.stack * 4)
        for earlier in range(step - waiting, step):
            _store_head(handle, env, earlier, step - 1, True, following)
        if pending and handle.link >= 0:
            linking_slot = wide(handle.linking_slots[index])
            if linking_slot >= 0:
                _set_link(handle, linking_slot, _store_final(handle, following))
                handle.linking_slots[index] = -1
        if pending:
            for pool_index in range(handle.num_pools):
                pool = frame_pool(handle, pool_index)
                if pool.next_refs >= 0:
                    release_frames(pool, pool.next_frames)
        handle.env_pending[env] = 0
        handle.env_waiting[env] = 0
        refresh_added(handle, added)
    if handle.following >= 0:
        handle.env_last[env] = -1
    is_from_returns = handle.weight_rule >= WEIGHT_EPISODE_RETURN
    if is_from_returns and handle.env_last[env] >= 0:
        if handle.weight_rule != WEIGHT_RETURN_SO_FAR:
            weigh_episode(handle, env)
        handle.env_last[env] = -1


@jit
def refresh_added(handle: Handle, added: int) -> None:
    """Update the tree for all entries with numbers from `added` on."""
    num_added, capacity = handle.added, handle.capacity
    if handle.kind != KIND_TREE or num_added == added:
        return
    if num_added - added >= capacity:
        refresh_range(handle, 0, capacity - 1)
        return
    first, last = added % capacity, (num_added - 1) % capacity
    if first <= last:
        refresh_range(handle, first, last)
    else:
        refresh_range(handle, first, capacity - 1)
        refresh_range(handle, 0, last)


@jit
def has_room(handle: Handle) -> bool:
    """Return whether one more transition fits, even if it shares nothing."""
    num_free = handle.finals_num_free
    if handle.link >= 0 and num_free <= handle.n_step:
        return False
    for pool_index in range(handle.num_pools):
        pool = frame_pool(handle, pool_index)
        room = pool.num_frames - pool.num_used
        if room + pool.num_free < 2 * pool.stack:
            return False
    return True


@jit
def prepare(handle: Handle, stage: int, count: int) -> int:
    """Check the rewards and compute the default weight, before anything changes.

    Returns:
        `count`, or the position of the first reward that can't be a weight.
    """
    if handle.weight_rule >= WEIGHT_EPISODE_RETURN:
        for position in range(count):
            if not abs(_step_reward(handle, stage + position * handle.stage_bytes)) < np.inf:
                return position
    handle.new_weight = default_weight(handle)
    return count


@jit
def store(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store one transition. The caller updates the tree later."""
    if handle.shares_next_obs:
        _store_linked(handle, stage, position, env, weight)
    else:
        _store_plain(handle, stage, position, env, weight)
