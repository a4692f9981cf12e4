"""Gathering of batches from rows and frames."""

from __future__ import annotations

from hotloop.base.numba_tools import copy_bytes, jit, prefetch
from hotloop.replay.native.frames import frame_at
from hotloop.replay.native.handle import COPY, Handle, copy_at, frame_pool, row_at, wide
from hotloop.replay.native.pointers import i32_at
from hotloop.replay.native.rows import HEAD, head_at

_COPY_BYTES = COPY.itemsize
FROM_ROW, FROM_NEXT, FROM_POOL, FROM_POOL_NEXT = range(4)


@jit
def next_obs_at(handle: Handle, row: int) -> int:
    """Return the address of the small fields of the observation that follows a row."""
    link = wide(i32_at(row + handle.link)[0])
    if link < 0:
        return handle.finals + (-1 - link) * handle.obs_bytes
    if link >= HEAD:
        return head_at(handle, link - HEAD)
    return row_at(handle, link)


@jit
def gather(handle: Handle, copies: int, num_copies: int, count: int) -> None:
    """Copy fields of the first `count` drawn entries into the arrays of a batch."""
    is_linked, row_bytes, slots = handle.link >= 0, handle.row_bytes, handle.batch_slots
    ahead, num_envs = 24, handle.num_envs
    for number in range(-ahead, count):
        if number + ahead < count:  # prefetch; the successor is usually N rows later
            row = row_at(handle, slots[number + ahead])
            for offset in range(0, row_bytes, 64):
                prefetch(row + offset)
            prefetch(row + row_bytes - 1)
            if is_linked:
                row += row_bytes * num_envs
                for offset in range(0, handle.obs_bytes, 64):
                    prefetch(row + offset)
        if number < 0:
            continue
        row = row_at(handle, slots[number])
        following = next_obs_at(handle, row) if is_linked else 0
        for index in range(num_copies):
            copy = copy_at(copies + index * _COPY_BYTES)
            kind, size = copy.source, copy.size
            target = copy.target + number * size
            if kind == FROM_ROW:
                copy_bytes(target, row + copy.offset, size)
            elif kind == FROM_NEXT:
                copy_bytes(target, following + copy.offset, size)
            else:
                pool = frame_pool(handle, copy.offset)
                refs = i32_at(row + (pool.refs if kind == FROM_POOL else pool.next_refs))
                frame_bytes = pool.frame_bytes
                for place in range(pool.stack):
                    frame = frame_at(pool, wide(refs[place]))
                    copy_bytes(target + place * frame_bytes, frame, frame_bytes)
