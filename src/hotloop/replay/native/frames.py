"""Reference-counted frames of the fields that are stored outside the rows.

The pool stores a frame once, even if a next observation or a stack of frames repeats it.
"""

from __future__ import annotations

from hotloop.base.numba_tools import copy_bytes, jit, same_bytes
from hotloop.replay.native.handle import PoolRecord, wide
from hotloop.replay.native.pointers import Ints32, i32_at


@jit
def frame_at(pool: PoolRecord, number: int) -> int:
    """Return the address of a frame."""
    shift = pool.chunk_shift
    chunk = pool.chunks[number >> shift]
    return chunk + (number & ((1 << shift) - 1)) * pool.frame_bytes


@jit
def hold_frame(pool: PoolRecord, number: int) -> int:
    """Add a reference to a frame, and return its number."""
    pool.counts[number] += 1
    return number


@jit
def release_frames(pool: PoolRecord, refs: Ints32) -> None:
    """Drop one reference to each of these frames, and free those without references."""
    counts = pool.counts
    for place in range(pool.stack):
        number = wide(refs[place])
        num_refs = counts[number] - 1
        counts[number] = num_refs
        if num_refs == 0:
            num_free = pool.num_free
            pool.free[num_free] = number
            pool.num_free = num_free + 1


@jit
def _store_frame(pool: PoolRecord, source: int) -> int:
    num_free = pool.num_free
    if num_free > 0:
        number = wide(pool.free[num_free - 1])
        pool.num_free = num_free - 1
    else:
        number = pool.num_used
        pool.num_used = number + 1
    copy_bytes(frame_at(pool, number), source, pool.frame_bytes)
    pool.counts[number] = 1
    return number


@jit
def store_stack(pool: PoolRecord, source: int, before: int, refs: Ints32) -> None:
    """Store the frames at `source`. Reuse frames that the preceding observation or stack contains.

    Args:
        pool: the field's frame pool.
        source: address of the frames.
        before: address of the preceding observation's frame numbers, 0 if there is none.
        refs: destination of the frame numbers.
    """
    size, stack = pool.frame_bytes, pool.stack
    for place in range(stack):
        frame = source + place * size
        if before != 0:
            number = wide(i32_at(before)[min(place + 1, stack - 1)])
            if same_bytes(frame, frame_at(pool, number), size):
                refs[place] = hold_frame(pool, number)
                continue
        if place > 0 and same_bytes(frame, frame - size, size):
            refs[place] = hold_frame(pool, wide(refs[place - 1]))
            continue
        refs[place] = _store_frame(pool, frame)


@jit
def same_stack(pool: PoolRecord, source: int, refs: Ints32) -> bool:
    """Return whether the frames at an address equal the frames with these numbers."""
    size = pool.frame_bytes
    for place in range(pool.stack):
        number = wide(refs[place])
        if not same_bytes(source + place * size, frame_at(pool, number), size):
            return False
    return True
