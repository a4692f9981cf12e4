"""CPU time of a step's bookkeeping: storing one transition and launching an empty update.

    python -m bench step-budget

The step has the rows, draws, noise and metrics of SAC with HalfCheetah-v5's shapes and a replay
buffer on the device, which is the CPU here. It has no environment, acting or update. The aim is 40
µs. `tests/training/test_step_budget.py` limits the calls of a step, which do not depend on the
machine.
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

AIM_US = 40


class StepParts(NamedTuple):
    """A training without an environment, an acting policy and an update.

    Attributes:
        step: function that stores `fragment` and makes a launch with an empty update.
        launches: launches with the replay buffer.
        fragment: one transition.
    """

    step: Callable[[], None]
    launches: Launches
    fragment: Fragment


def make_parts() -> StepParts:
    """Return the parts of a step."""
    from bench.accelerate.rows import ROWS
    from bench.accelerate.updates import make_launches
    from hotloop.types import Fragment

    row = ROWS["sac"]
    # Small batches, because the device that draws random numbers is the CPU here.
    row = row._replace(options={**row.options, "batch_size": 8})
    _, launches = make_launches(row, "eager", torch.device("cpu"))
    launches.run(1, None)  # checks the updates and makes the log of metrics
    for launch in launches.distinct:
        launch.execution = lambda bound: ()
    replay = launches.replay
    (obs_shape, obs_dtype), (_, size) = row.obs, row.action
    fragment = Fragment.allocate(
        1, 1, obs_shape=obs_shape, obs_dtype=obs_dtype, action_shape=(size,), action_dtype="float32"
    )
    fragment.valid[:] = True

    def step() -> None:
        replay.store(fragment)
        if launches.is_log_full:
            launches.drain_log()
        launches.run(1, None)

    return StepParts(step, launches, fragment)


def main() -> int:
    """Measure and print."""
    argparse.ArgumentParser(prog="python -m bench step-budget", description=__doc__).parse_args()
    torch.set_num_threads(1)
    step, count = make_parts().step, 64
    durations_us: list[float] = []
    for _ in range(200):
        start_ns = time.thread_time_ns()
        for _ in range(count):
            step()
        durations_us.append((time.thread_time_ns() - start_ns) / 1e3 / count)
    median_us, least_us = statistics.median(durations_us), min(durations_us)
    print(f"{median_us:.1f} µs per step, minimum {least_us:.1f} (aim: {AIM_US} µs)")
    return 0
