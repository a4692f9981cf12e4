"""Wake-ups of processes that wait for requests or answers.

A wake-up descriptor is an `eventfd`, a counter in the kernel. A process may be killed at any moment
while it uses one: there is no lock, and requests and answers are stored in the shared memory.
"""

from __future__ import annotations

import contextlib
import os


def create_wakeup_fd() -> int:
    """Return a descriptor that becomes readable after `wake`."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def wake(fd: int) -> None:
    """Wake the process that waits for the descriptor, now or at its next wait."""
    with contextlib.suppress(BlockingIOError):  # after 2⁶⁴ wake-ups
        os.eventfd_write(fd, 1)


def clear_wakeup(fd: int) -> None:
    """Reset a descriptor after a wake-up."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
