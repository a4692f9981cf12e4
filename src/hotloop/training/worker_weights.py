"""Weights of replayed transitions that give fast and slow workers the same share."""

from __future__ import annotations

import numpy as np

from hotloop.ops.shares import equal_shares
from hotloop.types import Array


class WorkerWeights:
    """The worker of each entry of a replay buffer, and the weights that follow from it.

    They are the `equal_shares` of the workers that have entries: weighted, each worker has the same
    share of the buffer, as if all workers had been equally fast.

    Args:
        capacity: the number of entries.
        num_workers: W.
    """

    def __init__(self, capacity: int, num_workers: int) -> None:
        self._workers = np.full(capacity, -1, np.int16)  # by entry number modulo capacity
        self._counts = np.zeros(num_workers, np.int64)

    def add(self, worker: int, first: int, count: int) -> None:
        """Assign the entries `first` … `first` + `count` − 1, which replace the oldest."""
        capacity = len(self._workers)
        first, count = first + max(0, count - capacity), min(count, capacity)
        slots = np.arange(first, first + count) % capacity
        replaced = self._workers[slots]
        self._counts -= np.bincount(replaced[replaced >= 0], minlength=len(self._counts))
        self._counts[worker] += count
        self._workers[slots] = worker

    def weights(self, index: Array) -> Array:
        """Return w of entries by number, float32, shaped like `index`, with a buffer mean of 1."""
        present = self._counts > 0
        worker_weights = np.ones(len(self._counts) + 1)  # the last, at −1, for unknown workers
        worker_weights[:-1][present] = equal_shares(self._counts[present])
        return worker_weights[self._workers[index % len(self._workers)]].astype(np.float32)

    def to_array(self) -> Array:
        """Return the worker of each entry, for a checkpoint with the buffer."""
        return self._workers.copy()

    def load(self, workers: Array) -> None:
        """Restore the output of `to_array`."""
        self._workers[:] = workers
        self._counts[:] = np.bincount(workers[workers >= 0], minlength=len(self._counts))
