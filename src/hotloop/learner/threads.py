"""Limits on the threads of torch and NumPy while a learner runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from hotloop.base.cores import available_cores, free_cores
from hotloop.base.processes import threads

# Maximum share of the time that runnable threads may wait for a core.
_CROWDED_SHARE = 0.15
# Seconds between two checks, and number of checks with free cores before threads are added.
_CHECK_INTERVAL_S, _NUM_CHECKS = 1.0, 10

_max_threads: int | None = None


def available_threads() -> int:
    """Return the useful number of threads: more than four hardly speed up products of 256×256."""
    return min(available_cores(), 4)


def graph_threads() -> int:
    """Return the number of threads that updates are compiled for, the maximum that they may get."""
    return torch.get_num_threads() if _max_threads is None else _max_threads


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the body with `count` intra-op threads, then restore the previous setting.

    For tiny networks, waking a second thread costs more than it saves. NumPy's matrix products, for
    acting, get one thread. On a busy machine, a product of 256×256 that waits for a second core
    took 11 ms instead of 0.1 ms with one core. A product split among threads also differs in its
    last bits from a worker's product.
    """
    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(previous_count)


class ThreadLimiter:
    """A limiter that gives updates one thread per free core.

    Threads that share a product wait for each other at its end. If two threads of SAC's updates
    share a core with other programs, they are 2.7 times as slow as one thread, and 3.9 times in two
    trainings side by side (`python -m bench neighbours`). The limiter therefore adds threads while
    cores are free, and removes them while more threads are runnable than there are cores. A test
    checks that perceptrons of 256×256 learn the same to the last bit with any number of threads.
    On Intel processors this requires MKL's strict mode, `MKL_CBWR=AUTO,STRICT`. MKL reads the
    variable at the first product of a process, and processes with and without it round differently,
    so the user must set it for all of them. Products of 256×256 take as long with it.

    Source: oneMKL's developer guide, "Reproducibility Conditions", strict CNR mode.

    Args:
        max_threads: number of threads on an idle machine.

    Attributes:
        count: current number of threads.
    """

    def __init__(self, max_threads: int) -> None:
        self.max_threads = max_threads
        self.count = max_threads
        self._samples: deque[int] = deque(maxlen=_NUM_CHECKS)
        self._has_warned = False
        self._openmp_libraries = [
            library.dynlib
            for library in ThreadpoolController().lib_controllers
            if library.user_api == "openmp" and hasattr(library.dynlib, "omp_set_dynamic")
        ]
        self._checked_s, self._queued_ns = time.monotonic(), 0

    @contextmanager
    def limiting(self) -> Iterator[ThreadLimiter]:
        """Run the body with limited threads."""
        global _max_threads
        with torch_threads(self.max_threads):
            _max_threads = self.max_threads
            try:
                if self.max_threads > 1:
                    self._set_initial_count()
                yield self
            finally:
                _max_threads = None
                self._set_count(self.max_threads)

    def adjust(self) -> str:
        """Check the load of the cores, at most once a second, and add or remove threads.

        Returns:
            A message when threads are removed for the first time, otherwise an empty string.
        """
        now_s = time.monotonic()
        passed_s = now_s - self._checked_s
        if self.max_threads == 1 or passed_s < _CHECK_INTERVAL_S:
            return ""
        queued_ns, old_queued_ns = _queued_ns(), self._queued_ns
        self._checked_s, self._queued_ns = now_s, queued_ns
        if self.count == 1:
            free = free_cores()
            self._samples.append(1 if free is None else free)
            if len(self._samples) == _NUM_CHECKS and (mean := round(fmean(self._samples))) > 1:
                self._set_count(mean)
        elif queued_ns - old_queued_ns > _CROWDED_SHARE * passed_s * 1e9:
            self._samples.clear()
            self._set_count(1)
            if not self._has_warned:
                self._has_warned = True
                return (
                    "the cores are busy with other work: updates continue with one thread until "
                    "cores are free"
                )
        return ""

    def _set_initial_count(self) -> None:
        """Set the number of threads to the mean number of free cores in five checks."""
        counts: list[int] = []
        for _ in range(5):
            free = free_cores()
            if free is None:
                return
            counts.append(free)
            time.sleep(0.01)
        self._set_count(round(fmean(counts)))
        self._checked_s, self._queued_ns = time.monotonic(), _queued_ns()

    def _set_count(self, count: int) -> None:
        self.count = count = min(self.max_threads, max(1, count))
        torch.set_num_threads(count)
        # Compiled updates request the number that they were compiled for. OpenMP may give less.
        for library in self._openmp_libraries:
            library.omp_set_dynamic(int(count < self.max_threads))


def _queued_ns() -> int:
    """Return the total time that runnable threads of this process have waited for a core."""
    return sum(thread.times.queued_ns for thread in threads())
