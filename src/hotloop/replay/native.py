"""What all compiled functions of a buffer share: its handle, and random numbers.

A buffer is one array of 64-bit words, its *handle*: counts, settings, and the addresses of all
other arrays. A jitted call takes the handle's address and nothing else; nine arrays as arguments
would cost 15 µs in a training loop before anything is done.

Random numbers come from xoshiro256++ (Blackman and Vigna 2021, arXiv:1805.01407), whose four words
lie in the handle and are saved with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.compiled import jit, load_i64, load_u64, store_u64

wide: Any = np.int64  # of an int32, or of a truth

# The words of the handle. Addresses of arrays and counts are int64, a few are float64.
CAPACITY, SIZE, ADDED, NUM_ENVS, N_STEP, GAMMA = range(6)
RANDOM = 6  # four words
FILLED, STALE = 10, 11  # counters that the user sees
SCRATCH, SCRATCH_SIZE = 12, 13  # int64 and float64 work space, see drawing.py
WEIGHTS = 14  # how a new entry gets its weight, see WEIGHT_*
RUNNING, RUNNING_IS_MEAN = 15, 16  # weight of the entries of a running episode
KIND, SHIFT_IS_MIN, SHIFT, REPLACEMENT, STRICT, STRATIFIED = range(17, 23)
EPOCH = 23
USUAL, ALPHA, EPSILON, PRIORITIES, WHOLE_BUFFER, SINGLE, BASE = range(118, 125)
# rows.py
ROWS, ROW_BYTES, STAGE_BYTES, PLAIN_BYTES = range(24, 28)
LINKED, OBS_BYTES, LINK, NEXT = range(28, 32)
REWARD, TERMINATED, TRUNCATED, DISCOUNT, RAW_REWARD, PREVIOUS = range(32, 38)  # offsets, -1: none
HEADS, OPEN, HEAD_WEIGHTS = range(38, 41)
ENV_STEPS, ENV_WAITING, ENV_PENDING = range(41, 44)
ENV_RETURN, ENV_FIRST, ENV_LAST = 44, 45, 49
FINALS, FINALS_FREE, FINALS_NUM_FREE = range(46, 49)
NUM_APART, APART = 50, 51  # see APART_* in rows.py
# tree.py
LEVELS = 60
SUMS, MINS, MAXS = 61, 76, 91  # an address a level; level 0 of SUMS: the leaves
# ranks.py
BLOCK_KEYS, BLOCK_SLOTS, BLOCK_COUNTS, BLOCK_ORDER, BLOCK_BEFORE = range(106, 111)
NUM_BLOCKS, FREE_BLOCKS, NUM_FREE_BLOCKS, MAX_BLOCKS, RANKS_STALE = range(111, 116)
RANK_ALPHA, RANK_TABLE = 116, 117
HANDLE_WORDS = 128

MAX_WEIGHT = 1e290  # beyond it, sums over all weights could be infinite

KIND_UNIFORM, KIND_TREE, KIND_RANKS = range(3)
WEIGHT_GIVEN, WEIGHT_MAX = range(2)
WEIGHT_EPISODE_RETURN, WEIGHT_RETURN_SO_FAR, WEIGHT_RETURN_TO_GO = range(2, 5)

_LOW_32 = np.uint64(0xFFFFFFFF)
_17, _23, _41, _45, _19 = (np.uint64(bits) for bits in (17, 23, 41, 45, 19))
_11, _32 = np.uint64(11), np.uint64(32)


@jit
def random_word(handle: int) -> int:
    """64 random bits."""
    base = handle + RANDOM * 8
    a, b = load_u64(base, 0), load_u64(base, 1)
    c, d = load_u64(base, 2), load_u64(base, 3)
    total = a + d
    word = ((total << _23) | (total >> _41)) + a
    shifted = b << _17
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << _45) | (d >> _19)
    store_u64(base, 0, a)
    store_u64(base, 1, b)
    store_u64(base, 2, c)
    store_u64(base, 3, d)
    return word


@jit
def random_unit(handle: int) -> float:
    """Uniform in [0, 1), 53 bits."""
    return np.float64(random_word(handle) >> _11) * (1.0 / 9007199254740992.0)


@jit
def random_below(handle: int, bound: int) -> int:
    """Uniform in 0 … bound − 1, exactly; `bound` below 2³² (Lemire 2019, arXiv:1805.10941)."""
    limit = np.uint64(bound)
    product = (random_word(handle) >> _32) * limit
    if (product & _LOW_32) < limit:
        threshold = (np.uint64(4294967296) - limit) % limit
        while (product & _LOW_32) < threshold:
            product = (random_word(handle) >> _32) * limit
    return wide(product >> _32)


@jit
def number_of(handle: int, slot: int) -> int:
    """The number of the entry that lies in a slot of the ring."""
    capacity, added = load_i64(handle, CAPACITY), load_i64(handle, ADDED)
    start = added - added % capacity
    return start + slot if start + slot < added else start + slot - capacity
