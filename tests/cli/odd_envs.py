"""Environments that print, and that don't close."""

import ctypes
import time
from pathlib import Path

from tests.toy_envs import ConstantReward, ReachTheTarget


class Talks(ConstantReward):
    """Prints at every step, at once."""

    def step(self, action):
        print("a step", flush=True)
        return super().step(action)


class Lingers(ConstantReward):
    """Never ends closing.

    Args:
        how: "waits" can be interrupted; "swallows" goes on waiting then; "locked" waits inside of C
            and can't be interrupted.
    """

    def __init__(self, how: str = "waits") -> None:
        super().__init__()
        self.how = how

    def close(self):
        if self.how == "locked":
            mutex, libc = ctypes.create_string_buffer(128), ctypes.CDLL(None)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                if self.how != "swallows":
                    raise


class NotesSteps(ReachTheTarget):
    """Makes a file at its hundredth step."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._count = Path(path), 0

    def step(self, action):
        self._count += 1
        if self._count == 100:
            self._path.touch()
        return super().step(action)
