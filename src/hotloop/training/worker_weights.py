"""Weights of replayed transitions: each worker counts the same, however fast it is."""

from __future__ import annotations

import numpy as np

from hotloop.types import Array


class WorkerWeights:
    """Knows which worker each entry of a replay buffer is from, and weighs it accordingly.

    w_i = M / (W m_i), with m_i of M entries from worker i and W workers that have any: the weighted
    entries of each worker are 1 / W of the whole, as if all had been equally fast. For replay what
    the weights of variable experience rollouts (`hotloop.rollouts.environment_weights`) are for
    fragments.

    Args:
        capacity: entries.
        num_workers: W.
    """

    def __init__(self, capacity: int, num_workers: int) -> None:
        self._workers = np.full(capacity, -1, np.int16)  # by an entry's number, modulo capacity
        self._counts = np.zeros(num_workers, np.int64)

    def add(self, worker: int, first: int, count: int) -> None:
        """Entries `first` … `first` + `count` − 1 are a worker's, and replace the oldest."""
        capacity = len(self._workers)
        first, count = first + max(0, count - capacity), min(count, capacity)
        places = np.arange(first, first + count) % capacity
        replaced = self._workers[places]
        self._counts -= np.bincount(replaced[replaced >= 0], minlength=len(self._counts))
        self._counts[worker] += count
        self._workers[places] = worker

    def weights(self, index: Array) -> Array:
        """w of entries by their numbers: float32, like `index`; its mean over all entries is 1."""
        present = self._counts > 0
        each = np.ones(len(self._counts) + 1)  # the last one, at −1: of nobody that is known
        each[:-1][present] = self._counts.sum() / (present.sum() * self._counts[present])
        return each[self._workers[index % len(self._workers)]].astype(np.float32)

    def to_array(self) -> Array:
        """For a checkpoint that holds the buffer too."""
        return self._workers.copy()

    def load(self, workers: Array) -> None:
        """The inverse of `to_array`."""
        self._workers[:] = workers
        self._counts[:] = np.bincount(workers[workers >= 0], minlength=len(self._counts))
