"""Transitions as rows: how they are written, and what is shared between them.

A row holds one transition's small fields side by side, so that gathering it touches few cache
lines. Fields beyond 1 KB (images) lie apart, as frames in a pool; the row holds the numbers of its
frames.

With sharing, a row has no `next_obs`. It has a link to where that observation lies:

    0 … capacity − 1    the row of the same environment's next transition
    HEAD + h            head h: the next transition is not stored yet
    −1 − f              final observation f: no transition starts with it, as after an episode's end

What is shared has been compared byte for byte, so links hold whatever an environment does.

Each environment has `n_step` heads, where its latest transitions wait until their windows are
complete; step s waits in head s mod n. When it leaves, its head takes the observation that follows
its window, which is where step s + n will begin. With n = 1 a transition is stored at once.
"""

from __future__ import annotations

import numpy as np

from hotloop.numba_tools import copy_bytes, jit, same_bytes
from hotloop.replay.native.frames import hold_frame, release_frames, same_stack, store_stack
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    WEIGHT_EPISODE_RETURN,
    WEIGHT_RETURN_SO_FAR,
    Handle,
    apart_of,
    row_at,
    wide,
)
from hotloop.replay.native.pointers import address_of, f32_at, i32_at, u8_at
from hotloop.replay.native.ranks import remove_rank
from hotloop.replay.native.tree import refresh_range
from hotloop.replay.native.weights import account, default_weight, end_episode

HEAD = 1 << 30  # links from here on are heads


@jit
def _store_final(handle: Handle, source: int) -> int:
    """Copy an observation that no transition starts with; returns the link to it."""
    num_free = handle.finals_num_free - 1
    handle.finals_num_free = num_free
    final = wide(handle.finals_free[num_free])
    size = handle.obs_bytes
    copy_bytes(handle.finals + final * size, source, size)
    return -1 - final


@jit
def head_at(handle: Handle, head: int) -> int:
    """The address of a head."""
    return handle.heads + head * handle.row_bytes


@jit
def _set_link(handle: Handle, slot: int, link: int) -> None:
    i32_at(row_at(handle, slot) + handle.link)[0] = link


@jit
def _claim(handle: Handle) -> int:
    """Free the slot of the next entry, and count the entry."""
    capacity, added = handle.capacity, handle.added
    slot = added % capacity
    if added >= capacity:  # it holds the oldest entry
        row, link_at = row_at(handle, slot), handle.link
        if link_at >= 0:
            link = wide(i32_at(row + link_at)[0])
            if link >= HEAD:
                handle.open[link - HEAD] = -1
            elif link < 0:
                num_free = handle.finals_num_free
                handle.finals_free[num_free] = -1 - link
                handle.finals_num_free = num_free + 1
        for field in range(handle.num_aparts):
            apart = apart_of(handle, field)
            release_frames(apart, i32_at(row + apart.refs))
            if apart.next_refs >= 0:
                release_frames(apart, i32_at(row + apart.next_refs))
        if handle.kind == KIND_RANKS:
            remove_rank(handle, slot, handle.leaves[slot])
    handle.added = added + 1
    handle.size = min(added + 1, capacity)
    return slot


@jit
def _ended(handle: Handle, row: int) -> bool:
    terminated, truncated = handle.terminated, handle.truncated
    if terminated >= 0 and u8_at(row + terminated)[0]:
        return True
    return truncated >= 0 and u8_at(row + truncated)[0] != 0


@jit
def _own_reward(handle: Handle, row: int) -> float:
    if handle.reward < 0:
        return 0.0
    return float(f32_at(row + handle.reward)[0])


@jit
def _store_plain(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition that shares nothing."""
    slot = _claim(handle)
    row = row_at(handle, slot)
    copy_bytes(row, stage, handle.plain_bytes)
    for field in range(handle.num_aparts):
        apart = apart_of(handle, field)
        size = apart.frame_bytes * apart.stack
        source = apart.stage + position * size
        store_stack(apart, source, 0, i32_at(row + apart.refs))
    account(handle, slot, env, _own_reward(handle, row), _ended(handle, row), weight)


@jit
def _leave_head(
    handle: Handle, env: int, step: int, last: int, closing: bool, next_obs: int
) -> None:
    """Move a step from its head into a row, with the rewards of its window.

    Args:
        handle: the buffer's.
        env: its environment.
        step: which.
        last: the last step of its window.
        closing: whether nothing follows the window.
        next_obs: what follows, where nothing does.
    """
    n_step = handle.n_step
    index = env * n_step + step % n_step
    head = head_at(handle, index)
    slot = _claim(handle)
    row = row_at(handle, slot)
    copy_bytes(row, head, handle.row_bytes)
    given = handle.head_weights[index]
    if n_step > 1:
        gamma, reward_at = handle.gamma, handle.reward
        total, discount = 0.0, 1.0
        for later in range(last, step - 1, -1):
            there = head_at(handle, env * n_step + later % n_step)
            total = f32_at(there + reward_at)[0] + gamma * total
            discount *= gamma
        final = head_at(handle, env * n_step + last % n_step)
        terminated_at, truncated_at = handle.terminated, handle.truncated
        terminated = u8_at(final + terminated_at)[0]
        f32_at(row + reward_at)[0] = total
        u8_at(row + terminated_at)[0] = terminated
        if truncated_at >= 0:
            u8_at(row + truncated_at)[0] = u8_at(final + truncated_at)[0]
        f32_at(row + handle.discount)[0] = 0.0 if terminated else discount
    for field in range(handle.num_aparts):  # the obs's frames move over with the row
        apart = apart_of(handle, field)
        if apart.next_refs >= 0:
            taken = apart.taken
            for place in range(apart.stack):
                number = hold_frame(apart, wide(taken[place]))
                i32_at(row + apart.next_refs)[place] = number
    if handle.link >= 0:
        heads_open = handle.open
        leads_here = wide(heads_open[index])
        if leads_here >= 0:
            _set_link(handle, leads_here, slot)
        if closing:
            heads_open[index] = -1
            _set_link(handle, slot, _store_final(handle, next_obs))
        else:
            heads_open[index] = slot
            _set_link(handle, slot, HEAD + index)
    account(handle, slot, env, _own_reward(handle, head), _ended(handle, head), given)


@jit
def _begin_step(handle: Handle, stage: int, position: int, env: int, step: int) -> None:
    """Write a transition into its head; where it starts elsewhere than expected, say so."""
    n_step = handle.n_step
    index = env * n_step + step % n_step
    head = head_at(handle, index)
    pending = handle.env_pending[env] != 0
    obs_bytes = handle.obs_bytes
    if handle.link >= 0:
        leads_here = wide(handle.open[index])
        if leads_here >= 0 and not same_bytes(stage, head, obs_bytes):
            _set_link(handle, leads_here, _store_final(handle, head))
            handle.open[index] = -1
    for field in range(handle.num_aparts):
        apart = apart_of(handle, field)
        size = apart.frame_bytes * apart.stack
        source, refs = apart.stage + position * size, i32_at(head + apart.refs)
        if pending and apart.next_refs >= 0:
            if same_stack(apart, source, refs):
                continue
            release_frames(apart, refs)
        store_stack(apart, source, 0, refs)
    copy_bytes(head, stage, handle.plain_bytes)


@jit
def _store_linked(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition whose next observation is shared."""
    n_step = handle.n_step
    step = handle.env_steps[env]
    index = env * n_step + step % n_step
    waiting = handle.env_waiting[env] + 1
    _begin_step(handle, stage, position, env, step)
    handle.head_weights[index] = weight
    head = head_at(handle, index)
    for field in range(handle.num_aparts):
        apart = apart_of(handle, field)
        if apart.next_refs >= 0:
            size = apart.frame_bytes * apart.stack
            source = apart.next_stage + position * size
            refs = head + apart.refs
            store_stack(apart, source, refs, apart.taken)
    next_obs = stage + handle.stage_next
    ended = _ended(handle, head)
    if ended:
        for earlier in range(step - waiting + 1, step + 1):
            _leave_head(handle, env, earlier, step, True, next_obs)
        waiting = 0
    elif waiting == n_step:
        _leave_head(handle, env, step - n_step + 1, step, False, next_obs)
        waiting -= 1
    following = head_at(handle, env * n_step + (step + 1) % n_step)
    if not ended:
        copy_bytes(following, next_obs, handle.obs_bytes)
    for field in range(handle.num_aparts):
        apart = apart_of(handle, field)
        if apart.next_refs >= 0:
            taken = apart.taken
            if ended:
                release_frames(apart, taken)
            else:
                copy_bytes(following + apart.refs, address_of(taken), apart.stack * 4)
    handle.env_pending[env] = 0 if ended else 1
    handle.env_waiting[env] = waiting
    handle.env_steps[env] = step + 1


@jit
def cut_one(handle: Handle, env: int) -> None:
    """Close the windows of an environment as they are."""
    if handle.linked:
        n_step = handle.n_step
        step = handle.env_steps[env]
        waiting = handle.env_waiting[env]
        added = handle.added
        index = env * n_step + step % n_step
        following = head_at(handle, index)
        pending = handle.env_pending[env] != 0
        if pending:
            for field in range(handle.num_aparts):
                apart = apart_of(handle, field)
                if apart.next_refs >= 0:
                    refs = following + apart.refs
                    copy_bytes(address_of(apart.taken), refs, apart.stack * 4)
        for earlier in range(step - waiting, step):
            _leave_head(handle, env, earlier, step - 1, True, following)
        if pending and handle.link >= 0:
            leads_here = wide(handle.open[index])
            if leads_here >= 0:
                _set_link(handle, leads_here, _store_final(handle, following))
                handle.open[index] = -1
        if pending:
            for field in range(handle.num_aparts):
                apart = apart_of(handle, field)
                if apart.next_refs >= 0:
                    release_frames(apart, apart.taken)
        handle.env_pending[env] = 0
        handle.env_waiting[env] = 0
        refresh_added(handle, added)
    if handle.following >= 0:
        handle.env_last[env] = -1
    from_returns = handle.weights >= WEIGHT_EPISODE_RETURN
    if from_returns and handle.env_last[env] >= 0:
        if handle.weights != WEIGHT_RETURN_SO_FAR:
            end_episode(handle, env)
        handle.env_last[env] = -1


@jit
def refresh_added(handle: Handle, added: int) -> None:
    """Bring the tree up to date after entries were added since there were `added`."""
    now, capacity = handle.added, handle.capacity
    if handle.kind != KIND_TREE or now == added:
        return
    if now - added >= capacity:
        refresh_range(handle, 0, capacity - 1)
        return
    first, last = added % capacity, (now - 1) % capacity
    if first <= last:
        refresh_range(handle, first, last)
    else:
        refresh_range(handle, first, capacity - 1)
        refresh_range(handle, 0, last)


@jit
def has_room(handle: Handle) -> bool:
    """Whether one more transition finds room, whatever it shares."""
    num_free = handle.finals_num_free
    if handle.link >= 0 and num_free <= handle.n_step:
        return False
    for field in range(handle.num_aparts):
        apart = apart_of(handle, field)
        room = apart.total - apart.used
        if room + apart.num_free < 2 * apart.stack:
            return False
    return True


@jit
def prepare(handle: Handle, stage: int, count: int) -> int:
    """Settle what is usual, before anything changes.

    Returns:
        `count`, or the first transition whose reward can't be a weight.
    """
    if handle.weights >= WEIGHT_EPISODE_RETURN:
        for position in range(count):
            if not abs(_own_reward(handle, stage + position * handle.stage_bytes)) < np.inf:
                return position
    handle.usual = default_weight(handle)
    return count


@jit
def store(handle: Handle, stage: int, position: int, env: int, weight: float) -> None:
    """Store one transition; the tree is brought up to date later."""
    if handle.linked:
        _store_linked(handle, stage, position, env, weight)
    else:
        _store_plain(handle, stage, position, env, weight)
