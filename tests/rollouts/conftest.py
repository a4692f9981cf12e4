"""Fixtures: tests of workers must not leave processes behind, and share one Ray."""

import contextlib
import os
import signal
import sys
import time
import uuid

import pytest
from threadpoolctl import threadpool_limits

from tests.rollouts.processes.pools import MARK, marked_processes
from tests.warm_start import cold_start, warm_start

__all__ = ["cold_start", "warm_start"]


@contextlib.contextmanager
def marked_children(patch, warm_start):
    """Mark all processes that are started inside, and fail if one of them remains."""
    warm_start.start_server()  # before a test counts the open files
    value = uuid.uuid4().hex
    patch.setenv(MARK, value)
    # As in a training: a matrix product that threads share differs in its last bits.
    with threadpool_limits(1, user_api="blas"):
        yield value
    deadline = time.monotonic() + 60.0
    while (pids := marked_processes(value)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert not pids, "processes were left behind"


@pytest.fixture
def mark(monkeypatch, warm_start):
    """Mark all processes that the test starts, and fail if one of them outlives it."""
    with marked_children(monkeypatch, warm_start) as value:
        yield value


@pytest.fixture(scope="package")
def shared_ray():
    """Return Ray, which is stopped after the tests of rollouts."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def cluster(shared_ray):
    """Start Ray, unless earlier tests have: it takes some seconds."""
    if not shared_ray.is_initialized():
        shared_ray.init(
            "local",  # not a cluster that runs here already
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 2**20,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
        )
    return shared_ray
