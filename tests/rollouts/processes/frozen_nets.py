"""Custom networks that deadlock or are slow to construct."""

import os
import threading
from pathlib import Path

from torch import nn

from tests.worker_envs import SLOW_S, WORKER


class SlowToLoad(nn.Module):
    """Takes long to construct in a worker, like a network that loads weights."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.policy = nn.Linear(obs_shape[0], head_size)
        self.value = nn.Linear(obs_shape[0], 1)
        if WORKER:
            threading.Event().wait(SLOW_S)

    def forward(self, obs):
        return self.policy(obs), self.value(obs)


class Deadlocks(SlowToLoad):
    """Also deadlocks in worker 1 as soon as the file `LOCK_FILE` exists."""

    def forward(self, obs):
        file = Path(os.environ["LOCK_FILE"])
        if WORKER == "1" and file.exists():
            file.unlink()
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return super().forward(obs)
