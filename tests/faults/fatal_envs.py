"""Slow environments that kill their worker in a chosen call."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium

WORKER = os.environ.get("HOTLOOP_WORKER", "")


class _KillsWorker(gymnasium.Wrapper):
    """Counts its calls in a file per worker and kind, one byte each."""

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


def make_env(env_id, directory=".", deaths=None, pause_s=0.0):
    """Make a Gymnasium environment that kills its worker.

    Args:
        env_id: ID of the environment.
        directory: Directory of the counts of calls.
        deaths: Number of the deadly call, by worker and kind: {"1 step": 70}.
        pause_s: Additional duration of a step, in seconds.
    """
    return _KillsWorker(gymnasium.make(env_id), directory, deaths or {}, pause_s)
