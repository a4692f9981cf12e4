"""The handle of a buffer, which all compiled functions share, and random numbers.

A buffer is one record, its *handle*: counts, settings, and the addresses of all other arrays. A
compiled call takes the handle's address and nothing else; nine arrays as arguments would cost 15 µs
in a training loop before anything is done.

Random numbers come from xoshiro256++ (Blackman and Vigna 2021, arXiv:1805.01407), whose four words
lie in the handle and are saved with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.numba_tools import jit
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

wide: Any = np.int64  # of an int32, or of a truth

MAX_WEIGHT = 1e290  # beyond it, sums over all weights could be infinite

KIND_UNIFORM, KIND_TREE, KIND_RANKS = range(3)
WEIGHT_GIVEN, WEIGHT_MAX = range(2)
WEIGHT_EPISODE_RETURN, WEIGHT_RETURN_SO_FAR, WEIGHT_RETURN_TO_GO = range(2, 5)


class Handle:
    """A buffer; offsets are those in a row, −1 where something is not there."""

    capacity: int
    size: int
    added: int
    num_envs: int
    n_step: int
    gamma: float
    random: State
    filled: int  # counters that the user sees
    stale: int
    # How batches are drawn, and entries weighed.
    kind: int  # KIND_…
    replacement: int
    strict: int
    stratified: int
    shift_is_min: int
    shift: float
    weights: int  # how a new entry gets its weight, WEIGHT_…
    running: float  # weight of the entries of a running episode
    running_is_mean: int
    usual: float  # weight of a new entry, settled as a call begins
    priorities: int
    alpha: float
    epsilon: float
    whole_buffer: int
    steps: int  # transitions a sequence, with its burn-in; 1: each is drawn alone
    burn_in: int
    # Work space, each of `scratch_size` elements; `table` of four times as many.
    scratch_size: int
    targets: Floats
    proposals: Ints  # the same memory as `targets`
    candidates: Ints
    chosen: Ints
    saved: Floats
    numbers: Ints
    prefixes: Floats  # the same memory as `numbers`
    table: Ints
    epoch: int
    # Rows.
    rows: int
    row_bytes: int
    stage_bytes: int
    plain_bytes: int
    single: int  # where one transition is staged
    linked: int
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
    open: Ints32
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
    num_aparts: int
    aparts: int
    # The tree: addresses, one a level; level 0 of the sums are the weights.
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


class Apart:
    """A field that lies apart, as frames."""

    refs: int  # offset of its frames' numbers in a row
    next_refs: int  # the same for the next observation's; −1: not a shared field
    stack: int  # frames a transition
    frame_bytes: int
    chunks: Ints  # addresses of the pieces that the pool consists of
    chunk_shift: int  # log2 of the frames a piece
    counts: Ints32  # references to each frame
    free: Ints32  # frames that were given back
    num_free: int
    used: int  # frames that were ever taken
    total: int  # frames that there is room for
    stage: int  # where the values to be written lie
    next_stage: int
    taken: Ints32  # the next observation's frames while a transition is written


class Order:
    """Addresses of what a batch wants to know besides its fields, and its copies.

    `firsts` are copies of what only the first transition of each sequence is asked for.
    """

    index: Ints
    weight: Floats
    probability: Floats
    importance: Floats32
    mask: Bytes
    has_importance: int
    num_copies: int
    copies: int
    num_firsts: int
    firsts: int


class Copy:
    """One field of a batch: where it comes from, and where it goes."""

    source: int  # FROM_…
    offset: int  # or which of the fields that lie apart
    size: int
    target: int  # address of the first entry's


HANDLE, handle_at = record(Handle)
APART, apart_at = record(Apart)
ORDER, order_at = record(Order)
COPY, copy_at = record(Copy)
_APART_BYTES = APART.itemsize


@jit
def apart_of(handle: Handle, field: int) -> Apart:
    """One of the fields that lie apart."""
    return apart_at(handle.aparts + field * _APART_BYTES)


@jit
def row_at(handle: Handle, slot: int) -> int:
    """The address of a row."""
    return handle.rows + slot * handle.row_bytes


@jit
def number_of(handle: Handle, slot: int) -> int:
    """The number of the entry that lies in a slot of the ring."""
    capacity, added = handle.capacity, handle.added
    start = added - added % capacity
    return start + slot if start + slot < added else start + slot - capacity


_LOW_32 = np.uint64(0xFFFFFFFF)
_17, _23, _41, _45, _19 = (np.uint64(bits) for bits in (17, 23, 41, 45, 19))
_11, _32 = np.uint64(11), np.uint64(32)


@jit
def random_word(handle: Handle) -> int:
    """64 random bits."""
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
    """Uniform in [0, 1), 53 bits."""
    return np.float64(random_word(handle) >> _11) * (1.0 / 9007199254740992.0)


@jit
def random_below(handle: Handle, bound: int) -> int:
    """Uniform in 0 … bound − 1, exactly; `bound` below 2³² (Lemire 2019, arXiv:1805.10941)."""
    limit = np.uint64(bound)
    product = (random_word(handle) >> _32) * limit
    if (product & _LOW_32) < limit:
        threshold = (np.uint64(4294967296) - limit) % limit
        while (product & _LOW_32) < threshold:
            product = (random_word(handle) >> _32) * limit
    return wide(product >> _32)
