"""How many cores torch uses, and only for as long as a learner runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the body with `count` intra-op threads, then give the process its own setting back.

    Operations on tiny networks lose more by waking a second thread than it does for them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
