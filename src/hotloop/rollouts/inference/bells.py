"""Bells: what wakes a process that waits for requests or for answers.

A bell is an `eventfd`, a counter in the kernel. Who rings it may be killed at any moment: nothing
is held, and what was rung for stands in the shared memory.
"""

from __future__ import annotations

import contextlib
import os


def new_bell() -> int:
    """A descriptor that is readable once it is rung."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    """Wake who waits for it, now or the next time that it waits."""
    with contextlib.suppress(BlockingIOError):  # it has been rung 2⁶⁴ times
        os.eventfd_write(bell, 1)


def hush(bell: int) -> None:
    """It is heard: from now on it is rung for what comes."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)
