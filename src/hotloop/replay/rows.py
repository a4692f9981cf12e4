"""Transitions as rows: how they are written, what is shared between them, how a batch is gathered.

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

Frames are counted references: an observation that is seen as the next one, or again within a stack
of frames, is there once.
"""

from __future__ import annotations

import numpy as np

from hotloop.compiled import (
    copy_bytes,
    entry,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    same_bytes,
    store_f32,
    store_f64,
    store_i32,
    store_i64,
    store_u8,
)
from hotloop.replay.drawing import TARGETS, current_shift, scratch
from hotloop.replay.native import (
    ADDED,
    APART,
    CAPACITY,
    DISCOUNT,
    ENV_FIRST,
    ENV_LAST,
    ENV_PENDING,
    ENV_RETURN,
    ENV_STEPS,
    ENV_WAITING,
    FINALS,
    FINALS_FREE,
    FINALS_NUM_FREE,
    GAMMA,
    HEAD_WEIGHTS,
    HEADS,
    KIND,
    KIND_RANKS,
    KIND_TREE,
    LINK,
    LINKED,
    N_STEP,
    NEXT,
    NUM_APART,
    NUM_ENVS,
    OBS_BYTES,
    OPEN,
    PLAIN_BYTES,
    PREVIOUS,
    RAW_REWARD,
    REWARD,
    ROW_BYTES,
    ROWS,
    RUNNING,
    RUNNING_IS_MEAN,
    SHIFT_IS_MIN,
    SIZE,
    STAGE_BYTES,
    SUMS,
    TERMINATED,
    TRUNCATED,
    USUAL,
    WEIGHT_EPISODE_RETURN,
    WEIGHT_MAX,
    WEIGHT_RETURN_SO_FAR,
    WEIGHT_RETURN_TO_GO,
    WEIGHTS,
    wide,
)
from hotloop.replay.ranks import greatest_rank, insert_rank, remove_rank
from hotloop.replay.tree import (
    greatest_weight,
    rebase,
    refresh_range,
    refresh_slots,
    total_weight,
)

HEAD = 1 << 30  # links from here on are heads

# Each field that lies apart has these words, from the address in `APART` on.
(
    APART_REFS,  # offset of its frames' numbers in a row
    APART_NEXT_REFS,  # the same for the next observation's; -1: not a shared field
    APART_STACK,  # frames a transition
    APART_FRAME_BYTES,
    APART_CHUNKS,  # addresses of the pieces that the pool consists of
    APART_CHUNK_SHIFT,  # log2 of the frames a piece
    APART_COUNTS,  # int32, references to each frame
    APART_FREE,  # int32, frames that were given back
    APART_NUM_FREE,
    APART_USED,  # frames that were ever taken
    APART_TOTAL,  # frames that there is room for
    APART_STAGE,  # where the values to be written lie
    APART_NEXT_STAGE,
    APART_TAKEN,  # int32, the next observation's frames while a transition is written
) = range(14)
APART_WORDS = 14


# Frames.


@jit
def _frame(apart: int, number: int) -> int:
    """The address of a frame."""
    shift = load_i64(apart, APART_CHUNK_SHIFT)
    chunk = load_i64(load_i64(apart, APART_CHUNKS), number >> shift)
    return chunk + (number & ((1 << shift) - 1)) * load_i64(apart, APART_FRAME_BYTES)


@jit
def _hold(apart: int, number: int) -> int:
    counts = load_i64(apart, APART_COUNTS)
    store_i32(counts, number, load_i32(counts, number) + 1)
    return number


@jit
def _release(apart: int, refs: int) -> None:
    """Give back the frames whose numbers lie at `refs`."""
    counts = load_i64(apart, APART_COUNTS)
    for place in range(load_i64(apart, APART_STACK)):
        number = wide(load_i32(refs, place))
        left = load_i32(counts, number) - 1
        store_i32(counts, number, left)
        if left == 0:
            num_free = load_i64(apart, APART_NUM_FREE)
            store_i32(load_i64(apart, APART_FREE), num_free, number)
            store_i64(apart, APART_NUM_FREE, num_free + 1)


@jit
def _store_frame(apart: int, source: int) -> int:
    """Copy a frame into the pool."""
    num_free = load_i64(apart, APART_NUM_FREE)
    if num_free > 0:
        number = wide(load_i32(load_i64(apart, APART_FREE), num_free - 1))
        store_i64(apart, APART_NUM_FREE, num_free - 1)
    else:
        number = load_i64(apart, APART_USED)
        store_i64(apart, APART_USED, number + 1)
    copy_bytes(_frame(apart, number), source, load_i64(apart, APART_FRAME_BYTES))
    store_i32(load_i64(apart, APART_COUNTS), number, 1)
    return number


@jit
def _store_stack(apart: int, source: int, before: int, refs: int) -> None:
    """Store the frames at `source`; what is in the observation before it, or twice, is shared.

    Args:
        apart: the field's words.
        source: the frames.
        before: the numbers of the preceding observation's frames, 0 if there is none.
        refs: int32, (stack,), where to write the frames' numbers.
    """
    size, stack = load_i64(apart, APART_FRAME_BYTES), load_i64(apart, APART_STACK)
    for place in range(stack):
        frame = source + place * size
        if before != 0:
            number = wide(load_i32(before, min(place + 1, stack - 1)))
            if same_bytes(frame, _frame(apart, number), size):
                store_i32(refs, place, _hold(apart, number))
                continue
        if place > 0 and same_bytes(frame, frame - size, size):
            store_i32(refs, place, _hold(apart, wide(load_i32(refs, place - 1))))
            continue
        store_i32(refs, place, _store_frame(apart, frame))


@jit
def _same_stack(apart: int, source: int, refs: int) -> bool:
    size = load_i64(apart, APART_FRAME_BYTES)
    for place in range(load_i64(apart, APART_STACK)):
        number = wide(load_i32(refs, place))
        if not same_bytes(source + place * size, _frame(apart, number), size):
            return False
    return True


# Final observations.


@jit
def _store_final(handle: int, source: int) -> int:
    """Copy an observation that no transition starts with; returns the link to it."""
    num_free = load_i64(handle, FINALS_NUM_FREE) - 1
    store_i64(handle, FINALS_NUM_FREE, num_free)
    final = wide(load_i32(load_i64(handle, FINALS_FREE), num_free))
    size = load_i64(handle, OBS_BYTES)
    copy_bytes(load_i64(handle, FINALS) + final * size, source, size)
    return -1 - final


@jit
def _row(handle: int, slot: int) -> int:
    return load_i64(handle, ROWS) + slot * load_i64(handle, ROW_BYTES)


@jit
def _head(handle: int, head: int) -> int:
    return load_i64(handle, HEADS) + head * load_i64(handle, ROW_BYTES)


@jit
def _set_link(handle: int, slot: int, link: int) -> None:
    store_i32(_row(handle, slot) + load_i64(handle, LINK), 0, link)


# Storing one transition.


@jit
def _claim(handle: int) -> int:
    """Free the slot of the next entry, and count the entry."""
    capacity, added = load_i64(handle, CAPACITY), load_i64(handle, ADDED)
    slot = added % capacity
    if added >= capacity:  # it holds the oldest entry
        row, link_at = _row(handle, slot), load_i64(handle, LINK)
        if link_at >= 0:
            link = wide(load_i32(row + link_at, 0))
            if link >= HEAD:
                store_i32(load_i64(handle, OPEN), link - HEAD, -1)
            elif link < 0:
                num_free = load_i64(handle, FINALS_NUM_FREE)
                store_i32(load_i64(handle, FINALS_FREE), num_free, -1 - link)
                store_i64(handle, FINALS_NUM_FREE, num_free + 1)
        for field in range(load_i64(handle, NUM_APART)):
            apart = load_i64(handle, APART) + field * APART_WORDS * 8
            _release(apart, row + load_i64(apart, APART_REFS))
            if load_i64(apart, APART_NEXT_REFS) >= 0:
                _release(apart, row + load_i64(apart, APART_NEXT_REFS))
        if load_i64(handle, KIND) == KIND_RANKS:
            remove_rank(handle, slot, load_f64(load_i64(handle, SUMS), slot))
    store_i64(handle, ADDED, added + 1)
    store_i64(handle, SIZE, min(added + 1, capacity))
    return slot


@jit
def set_weight(handle: int, slot: int, weight: float) -> None:
    """Write an entry's weight; the tree is brought up to date later, ranks at once."""
    leaves = load_i64(handle, SUMS)
    if load_i64(handle, KIND) == KIND_RANKS:
        remove_rank(handle, slot, load_f64(leaves, slot))
        insert_rank(handle, slot, weight)
    elif not load_i64(handle, SHIFT_IS_MIN):
        weight = max(weight, -current_shift(handle))
    store_f64(leaves, slot, weight)


@jit
def default_weight(handle: int) -> float:
    """What a new entry weighs if nothing else is said, as the buffer stands."""
    kind, weights = load_i64(handle, KIND), load_i64(handle, WEIGHTS)
    if weights == WEIGHT_MAX:
        greatest = greatest_rank(handle) if kind == KIND_RANKS else greatest_weight(handle)
        return greatest if load_i64(handle, SIZE) > 0 else 1.0
    if weights >= WEIGHT_EPISODE_RETURN:
        if load_i64(handle, RUNNING_IS_MEAN):
            size = load_i64(handle, SIZE)
            if size == 0:
                return 0.0
            rebase(handle, current_shift(handle))
            return total_weight(handle, 0.0) / size
        return load_f64(handle, RUNNING)
    return 0.0


@jit
def _end_episode(handle: int, env: int) -> None:
    """Give an ended episode's entries the weights that its rewards decide."""
    capacity = load_i64(handle, CAPACITY)
    number = load_i64(load_i64(handle, ENV_LAST), env)
    oldest = load_i64(handle, ADDED) - load_i64(handle, SIZE)
    first = max(load_i64(load_i64(handle, ENV_FIRST), env), oldest)
    to_go = load_i64(handle, WEIGHTS) == WEIGHT_RETURN_TO_GO
    gamma, previous_at = load_f64(handle, GAMMA), load_i64(handle, PREVIOUS)
    episode_return = load_f64(load_i64(handle, ENV_RETURN), env)
    raw_at = load_i64(handle, RAW_REWARD)
    written, slots = 0, scratch(handle, TARGETS)
    value = 0.0
    while number >= first:
        slot = number % capacity
        if to_go:
            value = load_f32(_row(handle, slot) + raw_at, 0) + gamma * value
        set_weight(handle, slot, value if to_go else episode_return)
        store_i64(slots, written, slot)
        written += 1
        if written == 256:
            if load_i64(handle, KIND) == KIND_TREE:
                refresh_slots(handle, slots, written)
            written = 0
        if previous_at < 0:
            number -= 1
        else:
            back = load_i32(_row(handle, slot) + previous_at, 0)
            number -= back
            if back == 0:
                break
    if load_i64(handle, KIND) == KIND_TREE:
        refresh_slots(handle, slots, written)


@jit
def _account(handle: int, slot: int, env: int, reward: float, ended: bool, weight: float) -> None:
    """Weigh a new entry, and its whole episode if that has ended.

    Args:
        handle: the buffer's.
        slot: where it lies.
        env: its environment.
        reward: its own, of one step.
        ended: whether its own step ended the episode.
        weight: what it was given; NaN: the usual.
    """
    weights = load_i64(handle, WEIGHTS)
    if weight != weight:
        weight = load_f64(handle, USUAL)
    if weights >= WEIGHT_EPISODE_RETURN:
        returns, last = load_i64(handle, ENV_RETURN), load_i64(handle, ENV_LAST)
        number = load_i64(handle, ADDED) - 1
        before = load_i64(last, env)
        if before < 0:
            store_i64(load_i64(handle, ENV_FIRST), env, number)
            store_f64(returns, env, 0.0)
        if load_i64(handle, PREVIOUS) >= 0:
            back = number - before if before >= 0 else 0
            store_i32(_row(handle, slot) + load_i64(handle, PREVIOUS), 0, min(back, 0x7FFFFFFF))
        if load_i64(handle, RAW_REWARD) != load_i64(handle, REWARD):
            store_f32(_row(handle, slot) + load_i64(handle, RAW_REWARD), 0, reward)
        store_i64(last, env, number)
        store_f64(returns, env, load_f64(returns, env) + reward)
        if weights == WEIGHT_RETURN_SO_FAR:
            weight = load_f64(returns, env)
    if load_i64(handle, KIND) == KIND_RANKS:
        store_f64(load_i64(handle, SUMS), slot, weight)
        insert_rank(handle, slot, weight)
    elif load_i64(handle, KIND) == KIND_TREE:
        set_weight(handle, slot, weight)
    if ended and weights >= WEIGHT_EPISODE_RETURN:
        if weights != WEIGHT_RETURN_SO_FAR:
            _end_episode(handle, env)
        store_i64(load_i64(handle, ENV_LAST), env, -1)


@jit
def _ended(handle: int, row: int) -> bool:
    terminated, truncated = load_i64(handle, TERMINATED), load_i64(handle, TRUNCATED)
    if terminated >= 0 and load_u8(row + terminated, 0):
        return True
    return truncated >= 0 and load_u8(row + truncated, 0) != 0


@jit
def _own_reward(handle: int, row: int) -> float:
    if load_i64(handle, REWARD) < 0:
        return 0.0
    return float(load_f32(row + load_i64(handle, REWARD), 0))


@jit
def _store_plain(handle: int, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition that shares nothing."""
    slot = _claim(handle)
    row = _row(handle, slot)
    copy_bytes(row, stage, load_i64(handle, PLAIN_BYTES))
    for field in range(load_i64(handle, NUM_APART)):
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        size = load_i64(apart, APART_FRAME_BYTES) * load_i64(apart, APART_STACK)
        source = load_i64(apart, APART_STAGE) + position * size
        _store_stack(apart, source, 0, row + load_i64(apart, APART_REFS))
    _account(handle, slot, env, _own_reward(handle, row), _ended(handle, row), weight)


@jit
def _leave_head(handle: int, env: int, step: int, last: int, closing: bool, next_obs: int) -> None:
    """Move a step from its head into a row, with the rewards of its window.

    Args:
        handle: the buffer's.
        env: its environment.
        step: which.
        last: the last step of its window.
        closing: whether nothing follows the window.
        next_obs: what follows, where nothing does.
    """
    n_step = load_i64(handle, N_STEP)
    index = env * n_step + step % n_step
    head = _head(handle, index)
    slot = _claim(handle)
    row = _row(handle, slot)
    copy_bytes(row, head, load_i64(handle, ROW_BYTES))
    given = load_f64(load_i64(handle, HEAD_WEIGHTS), index)
    if n_step > 1:
        gamma, reward_at = load_f64(handle, GAMMA), load_i64(handle, REWARD)
        total, discount = 0.0, 1.0
        for later in range(last, step - 1, -1):
            there = _head(handle, env * n_step + later % n_step)
            total = load_f32(there + reward_at, 0) + gamma * total
            discount *= gamma
        final = _head(handle, env * n_step + last % n_step)
        terminated_at, truncated_at = load_i64(handle, TERMINATED), load_i64(handle, TRUNCATED)
        terminated = load_u8(final + terminated_at, 0)
        store_f32(row + reward_at, 0, total)
        store_u8(row + terminated_at, 0, terminated)
        if truncated_at >= 0:
            store_u8(row + truncated_at, 0, load_u8(final + truncated_at, 0))
        store_f32(row + load_i64(handle, DISCOUNT), 0, 0.0 if terminated else discount)
    for field in range(load_i64(handle, NUM_APART)):  # the obs's frames move over with the row
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        if load_i64(apart, APART_NEXT_REFS) >= 0:
            taken = load_i64(apart, APART_TAKEN)
            for place in range(load_i64(apart, APART_STACK)):
                number = _hold(apart, wide(load_i32(taken, place)))
                store_i32(row + load_i64(apart, APART_NEXT_REFS), place, number)
    if load_i64(handle, LINK) >= 0:
        heads_open = load_i64(handle, OPEN)
        leads_here = wide(load_i32(heads_open, index))
        if leads_here >= 0:
            _set_link(handle, leads_here, slot)
        if closing:
            store_i32(heads_open, index, -1)
            _set_link(handle, slot, _store_final(handle, next_obs))
        else:
            store_i32(heads_open, index, slot)
            _set_link(handle, slot, HEAD + index)
    _account(handle, slot, env, _own_reward(handle, head), _ended(handle, head), given)


@jit
def _begin_step(handle: int, stage: int, position: int, env: int, step: int) -> None:
    """Write a transition into its head; where it starts elsewhere than expected, say so."""
    n_step = load_i64(handle, N_STEP)
    index = env * n_step + step % n_step
    head = _head(handle, index)
    pending = load_u8(load_i64(handle, ENV_PENDING), env) != 0
    obs_bytes = load_i64(handle, OBS_BYTES)
    if load_i64(handle, LINK) >= 0:
        leads_here = wide(load_i32(load_i64(handle, OPEN), index))
        if leads_here >= 0 and not same_bytes(stage, head, obs_bytes):
            _set_link(handle, leads_here, _store_final(handle, head))
            store_i32(load_i64(handle, OPEN), index, -1)
    for field in range(load_i64(handle, NUM_APART)):
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        size = load_i64(apart, APART_FRAME_BYTES) * load_i64(apart, APART_STACK)
        source, refs = (
            load_i64(apart, APART_STAGE) + position * size,
            head + load_i64(apart, APART_REFS),
        )
        if pending and load_i64(apart, APART_NEXT_REFS) >= 0:
            if _same_stack(apart, source, refs):
                continue
            _release(apart, refs)
        _store_stack(apart, source, 0, refs)
    copy_bytes(head, stage, load_i64(handle, PLAIN_BYTES))


@jit
def _store_linked(handle: int, stage: int, position: int, env: int, weight: float) -> None:
    """Store a transition whose next observation is shared."""
    n_step = load_i64(handle, N_STEP)
    step = load_i64(load_i64(handle, ENV_STEPS), env)
    index = env * n_step + step % n_step
    waiting = load_i64(load_i64(handle, ENV_WAITING), env) + 1
    _begin_step(handle, stage, position, env, step)
    store_f64(load_i64(handle, HEAD_WEIGHTS), index, weight)
    head = _head(handle, index)
    for field in range(load_i64(handle, NUM_APART)):
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        if load_i64(apart, APART_NEXT_REFS) >= 0:
            size = load_i64(apart, APART_FRAME_BYTES) * load_i64(apart, APART_STACK)
            source = load_i64(apart, APART_NEXT_STAGE) + position * size
            refs = head + load_i64(apart, APART_REFS)
            _store_stack(apart, source, refs, load_i64(apart, APART_TAKEN))
    next_obs = stage + load_i64(handle, NEXT)
    ended = _ended(handle, head)
    if ended:
        for earlier in range(step - waiting + 1, step + 1):
            _leave_head(handle, env, earlier, step, True, next_obs)
        waiting = 0
    elif waiting == n_step:
        _leave_head(handle, env, step - n_step + 1, step, False, next_obs)
        waiting -= 1
    following = _head(handle, env * n_step + (step + 1) % n_step)
    if not ended:
        copy_bytes(following, next_obs, load_i64(handle, OBS_BYTES))
    for field in range(load_i64(handle, NUM_APART)):
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        if load_i64(apart, APART_NEXT_REFS) >= 0:
            taken = load_i64(apart, APART_TAKEN)
            if ended:
                _release(apart, taken)
            else:
                size = load_i64(apart, APART_STACK) * 4
                copy_bytes(following + load_i64(apart, APART_REFS), taken, size)
    store_u8(load_i64(handle, ENV_PENDING), env, 0 if ended else 1)
    store_i64(load_i64(handle, ENV_WAITING), env, waiting)
    store_i64(load_i64(handle, ENV_STEPS), env, step + 1)


@entry
def cut(handle: int, env: int, last: int, begins: bool) -> int:
    """Close the windows of environments as they are: what comes next does not follow from them.

    Args:
        handle: the buffer's.
        env: the first of them.
        last: the last one.
        begins: settle what is usual; not when it goes on after more room was made.

    Returns:
        The environment before which more room is needed; `last` + 1 at the end.
    """
    if begins:
        store_f64(handle, USUAL, default_weight(handle))
    while env <= last:
        if not _has_room(handle):
            break
        _cut_one(handle, env)
        env += 1
    return env


@jit
def _cut_one(handle: int, env: int) -> None:
    if load_i64(handle, LINKED):
        n_step = load_i64(handle, N_STEP)
        step = load_i64(load_i64(handle, ENV_STEPS), env)
        waiting = load_i64(load_i64(handle, ENV_WAITING), env)
        added = load_i64(handle, ADDED)
        index = env * n_step + step % n_step
        following = _head(handle, index)
        pending = load_u8(load_i64(handle, ENV_PENDING), env) != 0
        if pending:
            for field in range(load_i64(handle, NUM_APART)):
                apart = load_i64(handle, APART) + field * APART_WORDS * 8
                if load_i64(apart, APART_NEXT_REFS) >= 0:
                    size = load_i64(apart, APART_STACK) * 4
                    refs = following + load_i64(apart, APART_REFS)
                    copy_bytes(load_i64(apart, APART_TAKEN), refs, size)
        for earlier in range(step - waiting, step):
            _leave_head(handle, env, earlier, step - 1, True, following)
        if pending and load_i64(handle, LINK) >= 0:
            leads_here = wide(load_i32(load_i64(handle, OPEN), index))
            if leads_here >= 0:
                _set_link(handle, leads_here, _store_final(handle, following))
                store_i32(load_i64(handle, OPEN), index, -1)
        if pending:
            for field in range(load_i64(handle, NUM_APART)):
                apart = load_i64(handle, APART) + field * APART_WORDS * 8
                if load_i64(apart, APART_NEXT_REFS) >= 0:
                    _release(apart, load_i64(apart, APART_TAKEN))
        store_u8(load_i64(handle, ENV_PENDING), env, 0)
        store_i64(load_i64(handle, ENV_WAITING), env, 0)
        _refresh_added(handle, added)
    from_returns = load_i64(handle, WEIGHTS) >= WEIGHT_EPISODE_RETURN
    if from_returns and load_i64(load_i64(handle, ENV_LAST), env) >= 0:
        if load_i64(handle, WEIGHTS) != WEIGHT_RETURN_SO_FAR:
            _end_episode(handle, env)
        store_i64(load_i64(handle, ENV_LAST), env, -1)


@jit
def _refresh_added(handle: int, added: int) -> None:
    """Bring the tree up to date after entries were added since there were `added`."""
    now, capacity = load_i64(handle, ADDED), load_i64(handle, CAPACITY)
    if load_i64(handle, KIND) != KIND_TREE or now == added:
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
def _has_room(handle: int) -> bool:
    """Whether one more transition finds room, whatever it shares."""
    num_free = load_i64(handle, FINALS_NUM_FREE)
    if load_i64(handle, LINK) >= 0 and num_free <= load_i64(handle, N_STEP):
        return False
    for field in range(load_i64(handle, NUM_APART)):
        apart = load_i64(handle, APART) + field * APART_WORDS * 8
        room = load_i64(apart, APART_TOTAL) - load_i64(apart, APART_USED)
        if room + load_i64(apart, APART_NUM_FREE) < 2 * load_i64(apart, APART_STACK):
            return False
    return True


@entry
def write(handle: int, stage: int, envs: int, weights: int, first: int, count: int) -> int:
    """Store transitions, in the order of time.

    Args:
        handle: the buffer's.
        stage: their fields, one row after the other; those that lie apart have their own.
        envs: int64, (count,), their environments; 0: 0 … N − 1 again and again.
        weights: float64, (count,); 0: what is usual.
        first: where to begin.
        count: where to end.

    Returns:
        `count`, or the transition before which more room is needed; or, with nothing stored, −1 −
        the first one whose reward can't be a weight.
    """
    added, num_envs = load_i64(handle, ADDED), load_i64(handle, NUM_ENVS)
    stage_bytes, linked = load_i64(handle, STAGE_BYTES), load_i64(handle, LINKED) != 0
    if first == 0:  # all is checked, and what is usual is settled, before anything changes
        if load_i64(handle, WEIGHTS) >= WEIGHT_EPISODE_RETURN:
            for position in range(count):
                if not abs(_own_reward(handle, stage + position * stage_bytes)) < np.inf:
                    return -1 - position
        store_f64(handle, USUAL, default_weight(handle))
    position = first
    while position < count:
        if not _has_room(handle):
            break
        env = load_i64(envs, position) if envs != 0 else position % num_envs
        weight = load_f64(weights, position) if weights != 0 else np.nan
        source = stage + position * stage_bytes
        if linked:
            _store_linked(handle, source, position, env, weight)
        else:
            _store_plain(handle, source, position, env, weight)
        position += 1
    _refresh_added(handle, added)
    return position


# Gathering.

FROM_ROW, FROM_NEXT, FROM_POOL, FROM_POOL_NEXT = range(4)


@jit
def next_obs_at(handle: int, row: int) -> int:
    """The address of the observation that follows a row, of its small fields."""
    link = wide(load_i32(row + load_i64(handle, LINK), 0))
    if link < 0:
        return load_i64(handle, FINALS) + (-1 - link) * load_i64(handle, OBS_BYTES)
    if link >= HEAD:
        return _head(handle, link - HEAD)
    return _row(handle, link)


@jit
def gather(handle: int, slots: int, count: int, copies: int, num_copies: int) -> None:
    """Copy the fields of a batch to where it wants them.

    Args:
        handle: the buffer's.
        slots: int64, (count,), whose.
        count: how many.
        copies: int64, (num_copies, 4): FROM_…, offset (or which field that lies apart), bytes,
            address of the first entry's.
        num_copies: how many.
    """
    linked, row_bytes = load_i64(handle, LINK) >= 0, load_i64(handle, ROW_BYTES)
    ahead, num_envs = 24, load_i64(handle, NUM_ENVS)
    for number in range(-ahead, count):
        if number + ahead < count:  # what will be needed soon; its successor is mostly N rows on
            row = _row(handle, load_i64(slots, number + ahead))
            for offset in range(0, row_bytes, 64):
                prefetch(row + offset)
            prefetch(row + row_bytes - 1)
            if linked:
                row += row_bytes * num_envs
                for offset in range(0, load_i64(handle, OBS_BYTES), 64):
                    prefetch(row + offset)
        if number < 0:
            continue
        row = _row(handle, load_i64(slots, number))
        following = next_obs_at(handle, row) if linked else 0
        for which in range(num_copies):
            order = copies + which * 32
            kind, size = load_i64(order, 0), load_i64(order, 2)
            target = load_i64(order, 3) + number * size
            if kind == FROM_ROW:
                copy_bytes(target, row + load_i64(order, 1), size)
            elif kind == FROM_NEXT:
                copy_bytes(target, following + load_i64(order, 1), size)
            else:
                apart = load_i64(handle, APART) + load_i64(order, 1) * APART_WORDS * 8
                frame_bytes = load_i64(apart, APART_FRAME_BYTES)
                refs = APART_REFS if kind == FROM_POOL else APART_NEXT_REFS
                refs_at = row + load_i64(apart, refs)
                for place in range(load_i64(apart, APART_STACK)):
                    frame = _frame(apart, wide(load_i32(refs_at, place)))
                    copy_bytes(target + place * frame_bytes, frame, frame_bytes)
