"""Networks of a user's own that deadlock, or take their time."""

import os
import threading
from pathlib import Path

from torch import nn

from tests.worker_envs import SLOW_S, WORKER


class SlowToLoad(nn.Module):
    """Is made slowly in a worker, as one is that reads what it starts from."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.policy = nn.Linear(obs_shape[0], head_size)
        self.value = nn.Linear(obs_shape[0], 1)
        if WORKER:
            threading.Event().wait(SLOW_S)

    def forward(self, obs):
        return self.policy(obs), self.value(obs)


class Deadlocks(SlowToLoad):
    """Also takes a lock twice in worker 1, once there is the file that `LOCK_FILE` names."""

    def forward(self, obs):
        file = Path(os.environ["LOCK_FILE"])
        if WORKER == "1" and file.exists():
            file.unlink()
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return super().forward(obs)
