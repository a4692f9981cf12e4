"""Changes of global functions of libraries, for as long as any thread needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SharedChange:
    """A context that makes a global change. The last thread to leave it undoes the change.

    Args:
        make: makes the change and returns a function that undoes it.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._num_users = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._num_users == 0:
                self._undo = self._make()
            self._num_users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._undo()
