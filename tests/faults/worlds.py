"""Environments in whose calls a worker dies, and that take their time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium

WORKER = os.environ.get("HOTLOOP_WORKER", "")


class _Mortal(gymnasium.Wrapper):
    """Counts its calls in a file for each worker and kind, one byte each, whoever makes them."""

    def __init__(self, env, directory, deaths, pause_s):
        super().__init__(env)
        self._directory = Path(directory)
        self._deaths = deaths
        self._pause_s = pause_s
        self._call("make")

    def reset(self, **options):
        self._call("reset")
        return super().reset(**options)

    def step(self, action):
        self._call("step")
        time.sleep(self._pause_s)
        return super().step(action)

    def close(self):
        self._call("close")
        super().close()

    def _call(self, kind):
        if f"{WORKER} {kind}" not in self._deaths:
            return
        path = self._directory / f"{WORKER}.{kind}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, b".")
        number = os.fstat(fd).st_size
        os.close(fd)
        if number == self._deaths[f"{WORKER} {kind}"]:
            os.kill(os.getpid(), signal.SIGKILL)


def mortal(env_id, directory=".", deaths=None, pause_s=0.0):
    """One of Gymnasium's environments.

    Args:
        env_id: which.
        directory: where calls are counted.
        deaths: by worker and kind of call, in which one its process dies: {"1 step": 70}.
        pause_s: how long a step takes besides.
    """
    return _Mortal(gymnasium.make(env_id), directory, deaths or {}, pause_s)
