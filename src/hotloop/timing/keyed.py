"""`Timing`: the interface of Sample Factory's class of that name, on top of spans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hotloop.timing import _control


class Timing(dict[str, float]):
    """Times in seconds by key, nested as their blocks were.

        timing = Timing(name="Learner")
        with timing.add_time("train"):  # accumulates
            with timing.timeit("epoch"):  # the latest one
                ...
            with timing.time_avg("step"):  # the mean of all
                ...
        print(timing, timing.train, timing["epoch"])

    Each block is a span too, so that it shows in the process's recording. It is slower than a bare
    span (some 2 µs), and for one thread.
    """

    def __init__(self, name: str = "Profile") -> None:
        super().__init__()
        self._name = name
        self._counts: dict[str, int] = {}
        self._parents: dict[str, str] = {}
        self._open = [""]

    def __getattr__(self, key: str) -> float:
        try:
            return self[key]
        except KeyError:
            known = ", ".join(self) or "none yet"
            raise AttributeError(f"no block {key!r} was timed: there are {known}") from None

    @contextmanager
    def _block(self, key: str) -> Iterator[list[float]]:
        # Where a key turns up a second time, inside another, it stays where it was first.
        self._parents.setdefault(key, self._open[-1])
        self._open.append(key)
        seconds = [0.0]
        start = time.perf_counter()
        try:
            with _control.backend.span(key):
                yield seconds
        finally:
            seconds[0] = time.perf_counter() - start
            self._open.pop()

    @contextmanager
    def add_time(self, key: str) -> Iterator[None]:
        """Add the time of the block to `key`."""
        seconds = [0.0]
        try:
            with self._block(key) as seconds:
                yield
        finally:
            self[key] = self.get(key, 0.0) + seconds[0]

    @contextmanager
    def timeit(self, key: str) -> Iterator[None]:
        """Set `key` to the time of the block."""
        seconds = [0.0]
        try:
            with self._block(key) as seconds:
                yield
        finally:
            self[key] = seconds[0]

    @contextmanager
    def time_avg(self, key: str) -> Iterator[None]:
        """Set `key` to the mean time of all its blocks."""
        seconds = [0.0]
        try:
            with self._block(key) as seconds:
                yield
        finally:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            mean = self.get(key, 0.0)
            self[key] = mean + (seconds[0] - mean) / count

    def _lines(self, parent: str, depth: int) -> Iterator[str]:
        indent = "  " * depth
        keys = [key for key, above in self._parents.items() if above == parent and key in self]
        inner = [key for key in keys if key in set(self._parents.values())]
        leaves = [f"{key}: {self[key]:.4f}" for key in keys if key not in inner]
        if leaves:
            yield indent + ", ".join(leaves)
        for key in inner:
            yield f"{indent}{key}: {self[key]:.4f}"
            yield from self._lines(key, depth + 1)

    def __str__(self) -> str:
        return "\n".join([f"{self._name} profile tree view:", *self._lines("", 0)])
