"""Threads that play jobs: their progress, and how they stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from hotloop.base.signals import blocked_signals

_POLL_S = 0.1

Progress = Callable[[int, int], None]
Job = TypeVar("Job")
Result = TypeVar("Result")


class GameStopped(Exception):
    """An exception that stops a game whose result is no longer needed."""


class PlayMonitor:
    """A thread-safe counter of progress that can stop games.

    Attributes:
        should_stop: set it to True to stop the games.
        kernel_s: sum of the seconds that threads spent in kernels.
    """

    def __init__(self, total: int = 0, on_progress: Progress | None = None) -> None:
        self.should_stop = False
        self.kernel_s = 0.0
        self._total, self._on_progress = total, on_progress
        self._num_played, self._reported = 0, -1
        self._lock = threading.Lock()

    def add_steps(self, run_steps: int, elapsed_s: float = 0.0) -> None:
        """Add runs × steps that were played, and the time that kernels took for them.

        Raises:
            GameStopped: `should_stop` is set.
        """
        with self._lock:
            self._num_played += run_steps
            self.kernel_s += elapsed_s
        if self.should_stop:
            raise GameStopped

    def report(self) -> None:
        """Call `on_progress` on the calling thread if there is progress."""
        if self._on_progress is not None and self._num_played != self._reported:
            self._reported = self._num_played
            self._on_progress(self._reported, self._total)


def play_jobs(
    next_job: Callable[[], Job | None],
    play: Callable[[Job], Result],
    *,
    num_threads: int,
    monitor: PlayMonitor,
    add: Callable[[Job, Result], None],
    report: Callable[[], None],
) -> None:
    """Play jobs on several threads. All other functions run on the calling thread.

    Few jobs are pending at a time, so memory use does not depend on their number. After an
    exception the games stop within a tenth of a second, and the results of finished jobs are added.

    Args:
        next_job: function that returns the next job, or None after the last one.
        play: function that plays a job on one of the threads, with this monitor.
        num_threads: number of threads.
        monitor: monitor that stops the games.
        add: function that receives each job with its result, in the order in which they finish.
        report: function called several times a second.
    """
    running: dict[Future[Result], Job] = {}
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while True:
                # Queue one more job per thread, so that no thread waits for this one.
                while len(running) < 2 * num_threads and (job := next_job()) is not None:
                    with blocked_signals():  # the pool may start a thread
                        running[pool.submit(play, job)] = job
                if not running:
                    return
                for future in wait(running, _POLL_S, FIRST_COMPLETED).done:
                    job = running.pop(future)
                    add(job, future.result())
                report()
        except BaseException:
            monitor.should_stop = True
            pool.shutdown(wait=True, cancel_futures=True)
            for future, job in running.items():
                if not future.cancelled() and future.exception() is None:
                    add(job, future.result())
            raise
