"""`Timing`, with the interface of Sample Factory's class of that name, on top of spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from hotloop.timing import _control


class _Block:
    """The context manager of one key of a `Timing`. It can be entered many times."""

    __slots__ = ("_entered", "_key", "_store", "_timing")

    def __init__(self, timing: Timing, key: str, store: Callable[[str, float], None]) -> None:
        self._timing = timing
        self._key = key
        self._store = store
        self._entered: list[tuple[Any, float]] = []  # a key may be nested in itself

    def __enter__(self) -> None:
        timing, key = self._timing, self._key
        # A key keeps its first parent if it appears again inside another key.
        timing._parents.setdefault(key, timing._open[-1])
        timing._open.append(key)
        span = _control.backend.span(key)
        span.__enter__()
        self._entered.append((span, time.perf_counter()))

    def __exit__(self, *_: object) -> None:
        end = time.perf_counter()
        span, start = self._entered.pop()
        span.__exit__(None, None, None)
        self._timing._open.pop()
        self._store(self._key, end - start)


class Timing(dict[str, float]):
    """Times in seconds by key, nested like the blocks of code.

        timing = Timing(name="Learner")
        with timing.add_time("train"):  # accumulates
            with timing.timeit("epoch"):  # the latest time
                ...
            with timing.time_avg("step"):  # the mean
                ...
        print(timing, timing.train, timing["epoch"])

    Each block is also a span, so it appears in the recording of the process. A block is slower than
    a span (about 1.5 µs). Use each `Timing` in one thread only.
    """

    def __init__(self, name: str = "Profile") -> None:
        super().__init__()
        self._name = name
        self._counts: dict[str, int] = {}
        self._parents: dict[str, str] = {}
        self._open = [""]
        self._blocks: dict[tuple[str, str], _Block] = {}

    def __getattr__(self, key: str) -> float:
        try:
            return self[key]
        except KeyError:
            known = ", ".join(self) or "none yet"
            raise AttributeError(f"no block {key!r} was timed: there are {known}") from None

    def add_time(self, key: str) -> _Block:
        """Add the time of the block to `key`."""
        return self._block(key, self._add)

    def timeit(self, key: str) -> _Block:
        """Set `key` to the time of the block."""
        return self._block(key, self.__setitem__)

    def time_avg(self, key: str) -> _Block:
        """Set `key` to the mean time of all its blocks."""
        return self._block(key, self._average)

    def _block(self, key: str, store: Callable[[str, float], None]) -> _Block:
        if not key:
            raise ValueError(
                "a block needs a key, got an empty one: pass the name of what it times"
            )
        block_key = (key, store.__name__)
        block = self._blocks.get(block_key)
        if block is None:
            block = self._blocks[block_key] = _Block(self, key, store)
        return block

    def _add(self, key: str, seconds: float) -> None:
        self[key] = self.get(key, 0.0) + seconds

    def _average(self, key: str, seconds: float) -> None:
        count = self._counts[key] = self._counts.get(key, 0) + 1
        mean = self.get(key, 0.0)
        self[key] = mean + (seconds - mean) / count

    def _lines(self, parent: str, depth: int) -> Iterator[str]:
        indent, outers = "  " * depth, set(self._parents.values())
        keys = [key for key, outer in self._parents.items() if outer == parent]
        inner = [key for key in keys if key in outers]
        keys = [key for key in keys if key in self]
        leaves = [f"{key}: {self[key]:.4f}" for key in keys if key not in inner]
        if leaves:
            yield indent + ", ".join(leaves)
        for key in inner:
            yield f"{indent}{key}: {self.get(key, 0.0):.4f}"  # 0 until its first block has ended
            yield from self._lines(key, depth + 1)

    def __str__(self) -> str:
        return "\n".join([f"{self._name} profile tree view:", *self._lines("", 0)])
