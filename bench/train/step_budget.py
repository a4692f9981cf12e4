"""Time that the host spends on a step of SAC besides the environment, acting and the update itself.

    python -m bench step-budget

Stores one transition of HalfCheetah-v5's shapes in a replay buffer on the device and makes one
launch whose update does nothing. So this is the bookkeeping around a launch: rows, draws, noise,
metrics. Exits with 1 where the median exceeds the limit. CPU time is measured, since others use the
machine too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

LIMIT_US = 40.0


def make_step() -> tuple[Callable[[], Any], Any]:
    """Return a function that stores one transition and makes one launch, and the `Launches`.

    The launch itself is the real one.
    """
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_updates, spaces
    from hotloop.training.device_replay import Launches, ReplayOnDevice
    from hotloop.types import Fragment

    row = ROWS["sac"]
    updates = make_updates(row, "eager", torch.device("cpu"))
    raise SystemExit(Fragment, Launches, ReplayOnDevice, spaces, updates)
