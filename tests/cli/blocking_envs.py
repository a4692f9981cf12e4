"""Environments that print, do not close or mark their progress."""

import ctypes
from pathlib import Path

from tests.toy_envs import ConstantReward, ReachTheTarget


class PrintsAtEachStep(ConstantReward):
    """Prints and flushes at every step."""

    def step(self, action):
        print("a step", flush=True)
        return super().step(action)


class NeverCloses(ConstantReward):
    """An environment whose `close` waits inside C for ever, and can't be interrupted."""

    def close(self):
        print("closing", flush=True)
        mutex, libc = ctypes.create_string_buffer(128), ctypes.CDLL(None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


class MarksHundredthStep(ReachTheTarget):
    """Creates a file at its hundredth step."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._count = Path(path), 0

    def step(self, action):
        self._count += 1
        if self._count == 100:
            self._path.touch()
        return super().step(action)
