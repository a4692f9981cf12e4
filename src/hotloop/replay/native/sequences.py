"""Sequences of transitions of one episode, linked by distances between entries.

A row has two words: the number of entries back to the previous transition of its episode, and the
number of entries forward to the following one. 0 means that there is none.
"""

from __future__ import annotations

from hotloop.base.numba_tools import jit
from hotloop.replay.native.handle import BatchRecord, Handle, entry_number, row_at, wide
from hotloop.replay.native.pointers import i32_at


@jit
def link_entry(handle: Handle, slot: int, env: int, is_end: bool) -> None:
    """Link a new entry with the previous one of its episode, in both directions."""
    last, added = handle.env_last, handle.added
    number, before, back = added - 1, last[env], 0
    if before >= added - handle.size:  # a previous entry exists and was not overwritten
        back = number - before
        previous_row = row_at(handle, before % handle.capacity)
        i32_at(previous_row + handle.following)[0] = back
    row = row_at(handle, slot)
    i32_at(row + handle.previous)[0] = back
    i32_at(row + handle.following)[0] = 0
    last[env] = -1 if is_end else number


@jit
def trace_sequences(handle: Handle, batch: BatchRecord, count: int) -> None:
    """Extend drawn entries to sequences. Each drawn entry is the first one to learn from.

    Slots are written to the work space, numbers and the mask to the batch, each (steps, B). The
    loop over sequences is the inner one, so that the processor waits for many rows at once.
    """
    slots, index, mask, num_burned = handle.batch_slots, batch.index, batch.mask, handle.candidates
    capacity, steps, burn_in = handle.capacity, handle.steps, handle.burn_in
    previous, following = handle.previous, handle.following
    oldest, length = handle.added - handle.size, steps - burn_in
    for column in range(count):
        index[column] = entry_number(handle, slots[column])
        num_burned[column] = 0
    for _ in range(burn_in):
        for column in range(count):
            slot = slots[column]
            back = wide(i32_at(row_at(handle, slot) + previous)[0])
            if back > 0 and index[column] - back >= oldest:
                index[column] -= back
                slots[column] = slot - back if slot >= back else slot - back + capacity
                num_burned[column] += 1
    for column in range(count):
        mask[column] = num_burned[column] == 0
    for step in range(1, steps):
        for column in range(count):
            previous_position = (step - 1) * count + column
            position = previous_position + count
            slot, distance = slots[previous_position], 0
            if step < num_burned[column] + length:
                distance = wide(i32_at(row_at(handle, slot) + following)[0])
            slot += distance
            slots[position] = slot if slot < capacity else slot - capacity
            index[position] = index[previous_position] + distance
            mask[position] = distance > 0 and step >= num_burned[column]
