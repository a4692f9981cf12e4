"""Limits on the threads of torch and NumPy, for as long as a learner runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from hotloop.system.cores import available_cores


def available_threads() -> int:
    """Cores for products of 256×256, which two cores do in half the time, eight hardly sooner."""
    return min(available_cores(), 4)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the body with `count` intra-op threads, then give the process its own setting back.

    Operations on tiny networks lose more by waking a second thread than it does for them. NumPy's
    matrix products, with which policies act, get one: on a busy machine one of 256×256 that waits
    for a second core took 11 ms where one core takes 0.1, and a product that is shared out among
    threads differs in its last bits from a worker's.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
