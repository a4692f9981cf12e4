"""Frames of fields that lie apart from the rows, as counted references.

An observation that is seen as the next one, or again within a stack of frames, is there once.
"""

from __future__ import annotations

from hotloop.numba_tools import copy_bytes, jit, same_bytes
from hotloop.replay.native.handle import Apart, wide
from hotloop.replay.native.pointers import Ints32, i32_at


@jit
def frame_at(apart: Apart, number: int) -> int:
    """The address of a frame."""
    shift = apart.chunk_shift
    chunk = apart.chunks[number >> shift]
    return chunk + (number & ((1 << shift) - 1)) * apart.frame_bytes


@jit
def hold_frame(apart: Apart, number: int) -> int:
    """Count one more reference to a frame."""
    apart.counts[number] += 1
    return number


@jit
def release_frames(apart: Apart, refs: Ints32) -> None:
    """Give back the frames of these numbers."""
    counts = apart.counts
    for place in range(apart.stack):
        number = wide(refs[place])
        left = counts[number] - 1
        counts[number] = left
        if left == 0:
            num_free = apart.num_free
            apart.free[num_free] = number
            apart.num_free = num_free + 1


@jit
def _store_frame(apart: Apart, source: int) -> int:
    """Copy a frame into the pool."""
    num_free = apart.num_free
    if num_free > 0:
        number = wide(apart.free[num_free - 1])
        apart.num_free = num_free - 1
    else:
        number = apart.used
        apart.used = number + 1
    copy_bytes(frame_at(apart, number), source, apart.frame_bytes)
    apart.counts[number] = 1
    return number


@jit
def store_stack(apart: Apart, source: int, before: int, refs: Ints32) -> None:
    """Store the frames at `source`; what is in the observation before it, or twice, is shared.

    Args:
        apart: the field.
        source: address of the frames.
        before: address of the preceding observation's frames' numbers, 0 if there is none.
        refs: where to write the frames' numbers.
    """
    size, stack = apart.frame_bytes, apart.stack
    for place in range(stack):
        frame = source + place * size
        if before != 0:
            number = wide(i32_at(before)[min(place + 1, stack - 1)])
            if same_bytes(frame, frame_at(apart, number), size):
                refs[place] = hold_frame(apart, number)
                continue
        if place > 0 and same_bytes(frame, frame - size, size):
            refs[place] = hold_frame(apart, wide(refs[place - 1]))
            continue
        refs[place] = _store_frame(apart, frame)


@jit
def same_stack(apart: Apart, source: int, refs: Ints32) -> bool:
    """Whether the frames at an address are those of these numbers."""
    size = apart.frame_bytes
    for place in range(apart.stack):
        number = wide(refs[place])
        if not same_bytes(source + place * size, frame_at(apart, number), size):
            return False
    return True
