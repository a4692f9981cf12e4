"""Limits on the threads of torch and NumPy, for as long as a learner runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from hotloop.system.cores import available_cores, free_cores
from hotloop.system.processes import threads

# Share of the time that threads which could run wait for a core, from which on there are too many.
_CROWDED = 0.15
# Seconds between two looks at the cores, and looks in a row that must find some free.
_LOOK_S, _LOOKS = 1.0, 10

_most: int | None = None


def available_threads() -> int:
    """Cores for products of 256×256, which two cores do in half the time, eight hardly sooner."""
    return min(available_cores(), 4)


def graph_threads() -> int:
    """Return the threads that compiled updates are made for: as many as they may ever have."""
    return torch.get_num_threads() if _most is None else _most


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


class FreeThreads:
    """As many threads as find a core of their own, from the first update to the last.

    Threads that share a product wait for each other at its end. Where two threads of SAC's updates
    share a core with somebody else's, they are 2.7 times as slow as one thread, in two trainings
    side by side 3.9 times (`python -m bench neighbours`). So threads are taken while cores are
    free, and given back while there are more threads that want to run than cores. Perceptrons of
    256×256 learn the same to the last bit with any number, which is tested. On Intel's processors
    that holds only if MKL is in its strict mode, `MKL_CBWR=AUTO,STRICT`. MKL reads this variable at
    the first product of a process, and processes with and without it round differently. So you set
    it for all of them, and hotloop does not. Products of 256×256 take as long with it.

    Source: oneMKL's developer guide, "Reproducibility Conditions", strict CNR mode.

    Args:
        most: threads to take where nothing else runs.

    Attributes:
        count: threads at the moment.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = most
        self._free: deque[int] = deque(maxlen=_LOOKS)
        self._is_told = False
        self._openmp = [
            one.dynlib
            for one in ThreadpoolController().lib_controllers
            if one.user_api == "openmp" and hasattr(one.dynlib, "omp_set_dynamic")
        ]
        self._looked_s, self._queued_ns = time.monotonic(), 0

    @contextmanager
    def taken(self) -> Iterator[FreeThreads]:
        """Run the body with them."""
        global _most
        with torch_threads(self.most):
            _most = self.most
            try:
                if self.most > 1:
                    self._begin()
                yield self
            finally:
                _most = None
                self._limit(self.most)

    def look(self) -> str:
        """Look at the cores, once a second at most, and take or give back threads.

        Returns:
            What to tell when threads are given back for the first time; else nothing.
        """
        now = time.monotonic()
        passed_s = now - self._looked_s
        if self.most == 1 or passed_s < _LOOK_S:
            return ""
        queued_ns, before_ns = _queued_ns(), self._queued_ns
        self._looked_s, self._queued_ns = now, queued_ns
        if self.count == 1:
            free = free_cores()
            self._free.append(1 if free is None else free)
            if len(self._free) == _LOOKS and (mean := round(fmean(self._free))) > 1:
                self._limit(mean)
        elif queued_ns - before_ns > _CROWDED * passed_s * 1e9:
            self._free.clear()
            self._limit(1)
            if not self._is_told:
                self._is_told = True
                return (
                    "the cores are busy with other work: updates go on with one thread until some "
                    "are free"
                )
        return ""

    def _begin(self) -> None:
        """Take as many as are free now."""
        seen: list[int] = []
        for _ in range(5):
            free = free_cores()
            if free is None:
                return
            seen.append(free)
            time.sleep(0.01)
        self._limit(round(fmean(seen)))
        self._looked_s, self._queued_ns = time.monotonic(), _queued_ns()

    def _limit(self, count: int) -> None:
        self.count = count = min(self.most, max(1, count))
        torch.set_num_threads(count)
        # Compiled updates ask for as many as they were made for, and get what there is.
        for library in self._openmp:
            library.omp_set_dynamic(int(count < self.most))


def _queued_ns() -> int:
    """Time that threads of this process could have run and had no core, so far."""
    return sum(thread.times.queued_ns for thread in threads())
