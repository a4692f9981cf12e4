"""Sequences of one episode's transitions, which know how far they lie apart.

A row has two words: how many entries ago its episode's previous transition was stored, and how many
entries later the following one; 0 where there is none.
"""

from __future__ import annotations

from hotloop.numba_tools import jit
from hotloop.replay.native.handle import Handle, Order, number_of, row_at, wide
from hotloop.replay.native.pointers import i32_at


@jit
def follow(handle: Handle, slot: int, env: int, ended: bool) -> None:
    """Lead from a new entry to the one before it, and back.

    Args:
        handle: the buffer's.
        slot: where it lies.
        env: its environment.
        ended: whether its own step ended the episode.
    """
    last, added = handle.env_last, handle.added
    number, before, back = added - 1, last[env], 0
    if before >= added - handle.size:  # there is one, and it was not overwritten
        back = number - before
        there = row_at(handle, before % handle.capacity)
        i32_at(there + handle.following)[0] = back
    row = row_at(handle, slot)
    i32_at(row + handle.previous)[0] = back
    i32_at(row + handle.following)[0] = 0
    last[env] = -1 if ended else number


@jit
def trace(handle: Handle, order: Order, count: int) -> None:
    """Turn the chosen entries, the first ones to learn from, into sequences.

    Slots go to the work space, numbers and the mask to the batch, each (steps, B). All sequences
    take a step before one takes two, so that the processor waits for many rows at once.
    """
    slots, index, mask, leads = handle.chosen, order.index, order.mask, handle.candidates
    capacity, steps, burn_in = handle.capacity, handle.steps, handle.burn_in
    previous, following = handle.previous, handle.following
    oldest, length = handle.added - handle.size, steps - burn_in
    for one in range(count):
        index[one] = number_of(handle, slots[one])
        leads[one] = 0
    for _ in range(burn_in):
        for one in range(count):
            slot = slots[one]
            back = wide(i32_at(row_at(handle, slot) + previous)[0])
            if back > 0 and index[one] - back >= oldest:
                index[one] -= back
                slots[one] = slot - back if slot >= back else slot - back + capacity
                leads[one] += 1
    for one in range(count):
        mask[one] = leads[one] == 0
    for step in range(1, steps):
        for one in range(count):
            before = (step - 1) * count + one
            here = before + count
            slot, on = slots[before], 0
            if step < leads[one] + length:
                on = wide(i32_at(row_at(handle, slot) + following)[0])
            slot += on
            slots[here] = slot if slot < capacity else slot - capacity
            index[here] = index[before] + on
            mask[here] = on > 0 and step >= leads[one]
