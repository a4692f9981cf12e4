"""Fixtures: tests of workers must not leave processes behind."""

import os
import signal
import time
import uuid

import pytest
from threadpoolctl import threadpool_limits

from tests.rollouts.processes.pools import MARK, marked_processes
from tests.warm_start import cold_start, warm_start

__all__ = ["cold_start", "warm_start"]


@pytest.fixture
def mark(monkeypatch, warm_start):
    """Mark all processes that the test starts, and fail if one of them outlives it."""
    warm_start.start_server()  # before a test counts the open files
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    # As in a training: a matrix product that threads share differs in its last bits.
    with threadpool_limits(1, user_api="blas"):
        yield value
    deadline = time.monotonic() + 3.0
    while (pids := marked_processes(value)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert not pids, "processes were left behind"
