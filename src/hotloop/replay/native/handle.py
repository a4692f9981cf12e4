"""The handle of a buffer, which all compiled functions share, and random numbers.

One record describes a buffer, its *handle*: counts, settings, and the addresses of all other
arrays. A compiled call takes the handle's address instead of the arrays. Passing nine arrays as
arguments would cost 15 µs per call in a training loop.

Random numbers come from xoshiro256++ (Blackman and Vigna 2021, arXiv:1805.01407). The handle
contains the four words of its state, so they are saved with the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.base.numba_tools import jit
from hotloop.replay.native.pointers import (
    Bytes,
    Floats,
    Floats32,
    Ints,
    Ints32,
    Levels,
    State,
    record,
)

wide: Any = np.int64  # converts an int32 or a bool

MAX_WEIGHT = 1e290  # beyond it, the sum over all weights could be infinite

KIND_UNIFORM, KIND_TREE, KIND_RANKS = range(3)
WEIGHT_GIVEN, WEIGHT_MAX = range(2)
WEIGHT_EPISODE_RETURN, WEIGHT_RETURN_SO_FAR, WEIGHT_RETURN_TO_GO = range(2, 5)


class Handle:
    """A buffer. Offsets are bytes within a row, −1 if the layout lacks the item."""

    capacity: int
    size: int
    added: int
    num_envs: int
    n_step: int
    gamma: float
    random: State
    filled: int  # user-visible counters, see `ReplayBuffer.counters`
    stale: int
    # Settings of the sampler and of the weights.
    kind: int  # KIND_…
    replacement: int
    strict: int
    stratified: int
    shift_is_min: int
    shift: float
    weight_rule: int  # source of a new entry's weight, WEIGHT_…
    running_weight: float  # weight of entries whose episode has not ended
    running_is_mean: int
    new_weight: float  # default weight of a new entry, computed at the start of a call
    has_priorities: int
    alpha: float
    epsilon: float
    whole_buffer: int
    steps: int  # transitions per sequence, including the burn-in; 1: single transitions
    burn_in: int
    # Work space of `scratch_size` elements per array, and of 4 · `scratch_size` for `table`.
    scratch_size: int
    targets: Floats
    proposals: Ints  # the same memory as `targets`
    candidates: Ints
    batch_slots: Ints
    work_weights: Floats
    numbers: Ints
    prefixes: Floats  # the same memory as `numbers`
    table: Ints
    epoch: int
    # Rows.
    rows: int
    row_bytes: int
    stage_bytes: int
    plain_bytes: int
    staged_row: int  # address of the staging row of a single transition
    shares_next_obs: int
    obs_bytes: int
    link: int
    stage_next: int
    reward: int
    terminated: int
    truncated: int
    discount: int
    raw_reward: int
    previous: int
    following: int
    heads: int
    linking_slots: Ints32
    head_weights: Floats
    env_steps: Ints
    env_waiting: Ints
    env_pending: Bytes
    env_return: Floats
    env_first: Ints
    env_last: Ints
    finals: int
    finals_free: Ints32
    finals_num_free: int
    num_pools: int
    pools: int
    # The tree: one address per level. Level 0 of the sums contains the weights.
    levels: int
    leaves: Floats
    sums: Levels
    mins: Levels
    maxs: Levels
    base: float
    # Ranks.
    block_keys: Floats
    block_slots: Ints32
    block_counts: Ints32
    block_order: Ints32
    block_before: Ints
    num_blocks: int
    free_blocks: Ints32
    num_free_blocks: int
    max_blocks: int
    ranks_stale: int
    rank_alpha: float
    rank_table: Floats


class PoolRecord:
    """The frame pool of one field that is stored outside the rows."""

    refs: int  # offset of its frame numbers in a row
    next_refs: int  # offset of the next observation's frame numbers; −1: not a shared field
    stack: int  # frames per transition
    frame_bytes: int
    chunks: Ints  # addresses of the chunks of the pool
    chunk_shift: int  # log2 of the frames per chunk
    counts: Ints32  # references to each frame
    free: Ints32  # numbers of the released frames
    num_free: int
    num_used: int  # frames allocated so far, including released ones
    num_frames: int  # capacity in frames
    stage: int  # address of the staged values
    next_stage: int
    next_frames: Ints32  # frame numbers of the next observation while a transition is written


class BatchRecord:
    """Addresses of a batch's arrays, and its list of copies.

    `first_copies` apply to the first transition of each sequence only.
    """

    index: Ints
    weight: Floats
    probability: Floats
    importance: Floats32
    mask: Bytes
    has_importance: int
    num_copies: int
    copies: int
    num_first_copies: int
    first_copies: int


class Copy:
    """One field of a batch: its source within an entry and its destination."""

    source: int  # FROM_…
    offset: int  # in bytes; for frames: index of the frame pool
    size: int
    target: int  # address of the first entry's value


HANDLE, handle_at = record(Handle)
POOL, pool_at = record(PoolRecord)
BATCH, batch_at = record(BatchRecord)
COPY, copy_at = record(Copy)
_POOL_BYTES = POOL.itemsize


@jit
def frame_pool(handle: Handle, index: int) -> PoolRecord:
    """Return the frame pool with this index."""
    return pool_at(handle.pools + index * _POOL_BYTES)


@jit
def row_at(handle: Handle, slot: int) -> int:
    """Return the address of a row."""
    return handle.rows + slot * handle.row_bytes


@jit
def entry_number(handle: Handle, slot: int) -> int:
    """Return the number of the entry in a slot of the ring."""
    capacity, added = handle.capacity, handle.added
    start = added - added % capacity
    return start + slot if start + slot < added else start + slot - capacity


_LOW_32 = np.uint64(0xFFFFFFFF)
_17, _23, _41, _45, _19 = (np.uint64(bits) for bits in (17, 23, 41, 45, 19))
_11, _32 = np.uint64(11), np.uint64(32)


@jit
def random_word(handle: Handle) -> int:
    """Return 64 random bits."""
    state: Any = handle.random
    a, b, c, d = state[0], state[1], state[2], state[3]
    total = a + d
    word = ((total << _23) | (total >> _41)) + a
    shifted = b << _17
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << _45) | (d >> _19)
    state[0], state[1], state[2], state[3] = a, b, c, d
    return word


@jit
def random_unit(handle: Handle) -> float:
    """Return a uniform number in [0, 1) with 53 random bits."""
    return np.float64(random_word(handle) >> _11) * (1.0 / 9007199254740992.0)


@jit
def random_below(handle: Handle, bound: int) -> int:
    """Return an exactly uniform integer below `bound` < 2³² (Lemire 2019, arXiv:1805.10941)."""
    limit = np.uint64(bound)
    product = (random_word(handle) >> _32) * limit
    if (product & _LOW_32) < limit:
        threshold = (np.uint64(4294967296) - limit) % limit
        while (product & _LOW_32) < threshold:
            product = (random_word(handle) >> _32) * limit
    return wide(product >> _32)
