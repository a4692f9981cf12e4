"""CPU time of a step's bookkeeping: one transition stored, one launch made of an empty update.

    python -m bench step-budget

Rows, draws, noise and metrics of SAC with HalfCheetah-v5's shapes and a replay buffer on the
device, which is the CPU here. Environment, acting and the update are left out. Exits with 1 where
the median exceeds the limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from hotloop.training.device_replay import Launches
    from hotloop.types import Fragment

LIMIT_US = 40.0


class Parts(NamedTuple):
    """A training without an environment, an acting policy and an update.

    Attributes:
        step: stores `fragment` and makes a launch whose update does nothing.
        launches: makes it, with the replay buffer.
        fragment: one transition.
    """

    step: Callable[[], None]
    launches: Launches
    fragment: Fragment


def make_parts() -> Parts:
    """Return what a step consists of."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_launches
    from hotloop.types import Fragment

    row = ROWS["sac"]
    # Small batches: random numbers are drawn by the device, and that is the CPU here.
    row = row._replace(options={**row.options, "batch_size": 8})
    _, launches = make_launches(row, "eager", torch.device("cpu"))
    launches.make(1, None)  # checks the updates, and makes the log of their metrics
    for launch in launches.all:
        launch.execution = lambda bound: ()
    replay = launches.replay
    (obs_shape, obs_dtype), (_, size) = row.obs, row.action
    fragment = Fragment.allocate(
        1, 1, obs_shape=obs_shape, obs_dtype=obs_dtype, action_shape=(size,), action_dtype="float32"
    )
    fragment.valid[:] = True

    def step() -> None:
        replay.store(fragment)
        if launches.is_full:
            launches.read()
        launches.make(1, None)

    return Parts(step, launches, fragment)


def main() -> int:
    """Measure, print, and compare with the limit."""
    argparse.ArgumentParser(prog="python -m bench step-budget", description=__doc__).parse_args()
    torch.set_num_threads(1)
    step, count = make_parts().step, 64
    taken: list[float] = []
    for _ in range(200):
        began = time.thread_time_ns()
        for _ in range(count):
            step()
        taken.append((time.thread_time_ns() - began) / 1e3 / count)
    median_us, least_us = statistics.median(taken), min(taken)
    is_good = median_us <= LIMIT_US
    verdict = "" if is_good else " FAILED"
    print(f"{median_us:.1f} µs a step, at least {least_us:.1f} (limit {LIMIT_US:.0f} µs){verdict}")
    return int(not is_good)
