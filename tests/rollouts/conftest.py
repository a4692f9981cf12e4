"""No test of workers may leave a process behind."""

import os
import signal
import time
import uuid

import pytest
from threadpoolctl import threadpool_limits

from tests.rollouts.workers.pools import MARK, marked_processes
from tests.warm_start import cold_start, warm_start

__all__ = ["cold_start", "warm_start"]


@pytest.fixture
def mark(monkeypatch, warm_start):
    """Mark all processes that the test starts. Afterwards, none of them may live."""
    warm_start.start_server()  # before a test counts the open files
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    # As in a training: a matrix product that threads share differs in its last bits.
    with threadpool_limits(1, user_api="blas"):
        yield value
    until = time.monotonic() + 3.0
    while (left := marked_processes(value)) and time.monotonic() < until:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"
